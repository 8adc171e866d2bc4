"""Ten architectures and every kind of memory on the real llama.cpp: drafted text is plain text, whatever is rejected.

The models are small and random, made by `gguf_maker`; all ten run. Two need care to be made at all: "phi3" in a
model's name makes llama.cpp look up that family's tokens, and ggml's AVX-512 kernel for RWKV-7 runs past heads narrower
than 64.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf_maker
import numpy as np
import pytest

from edgespec.config import EngineConfig
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.sampling import Sampler
from edgespec.core.session import Session
from edgespec.engine import Engine
from edgespec.interfaces import Draft, Limits, Plan, Result, Rollback, Rows, Sampling
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions
from edgespec.testing import FakeClock, ScriptedDrafter

MODELS: dict[str, tuple[str, bool, Rollback]] = {
    **{kind: (kind, False, "removal") for kind in ("llama", "qwen2", "qwen3", "phi3", "qwen3moe")},
    "gemma3": ("gemma3", False, "removal"),
    "gemma3, whole windows": ("gemma3", True, "removal"),
    "lfm2": ("lfm2", False, "snapshots"),
    **{kind: (kind, False, "replay") for kind in ("granitehybrid", "mamba", "rwkv7")},
}
"""By name: the architecture, `swa_full`, and how rejected tokens are taken back."""
N_FAST, N_ALL, N_TOKENS = 4, 50, 64
OPTIONS = TargetOptions(n_ctx=512, n_rows_max=8, n_batch=64, n_rs_seq=7)
SAMPLED = Sampling(temperature=0.8, top_k=40, seed=11)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = gguf_maker.ARCHITECTURES
    return {kind: gguf_maker.make(folder / f"{kind}.gguf", kind, output_scale=2.0) for kind in kinds}


@pytest.fixture(params=MODELS)
def target(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[LlamaTarget]:
    kind, swa_full, rollback = MODELS[request.param]
    with load(files[kind], replace(OPTIONS, swa_full=swa_full)) as opened:
        assert opened.capabilities.rollback == rollback
        assert not opened.notes
        yield opened


def prompts(n: int, length: int = 40) -> list[list[int]]:
    """Texts of words that come again, so that there is something to look up."""
    rng = random.Random(n)
    words = [bytes(rng.choices(range(97, 123), k=rng.randint(2, 6))) for _ in range(40)]
    return [[3 + byte for byte in b" ".join(rng.choices(words, k=length))][:length] for _ in range(n)]


@dataclass
class Told:
    """An answer and what it took."""

    result: Result
    n_replayed: int = 0
    """Tokens evaluated a second time."""


def tell(session: Session, prompt: Sequence[int], sampling: Sampling, drafting: Drafting | None = None) -> Told:
    """One answer of `N_TOKENS` tokens."""
    target, clock = session.target, FakeClock()
    limits = Limits(N_TOKENS, max_draft=7, ignore_eog=True)
    generation = Generation(session, prompt, sampling, limits, lambda token: b"?", clock, drafting)
    n_replayed = 0
    while generation.finish_reason is None:
        play_round([generation], target, clock)
        n_replayed += session.n_replay
    return Told(generation.result(), n_replayed)


class Nearly(ScriptedDrafter):
    """Knows the answer and gets a fifth of its tokens wrong, so that a draft ends anywhere."""

    def __init__(self, prompt: Sequence[int], answer: Sequence[int], seed: int) -> None:
        rng = random.Random(seed)

        def play(context: Sequence[int], limit: int) -> Sequence[int]:
            done = len(context) - len(prompt)
            guess = answer[done : done + rng.randint(0, limit)]
            return [rng.randrange(3, 259) if rng.random() < 0.2 else token for token in guess]

        super().__init__(play, "nearly")


def chain(tokens: Sequence[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (0,) * n, (1.0,) * n)


def rows_of(target: LlamaTarget, prompt: Sequence[int], answer: Sequence[int], width: int) -> Rows:
    """The row after the prompt and after each token of the answer, evaluated in passes of `width` tokens."""
    target.clear(0)
    n_batch = OPTIONS.n_batch
    rows = []
    for begin in range(0, len(prompt), n_batch):
        is_last = begin + n_batch >= len(prompt)
        rows.append(target.eval([Plan(0, begin, prompt[begin : begin + n_batch], rows=is_last)])[0].copy())
    for begin in range(0, len(answer), width):
        part = answer[begin : begin + width]
        rows.append(target.eval([Plan(0, len(prompt) + begin, part[:1], chain(part[1:]))])[0].copy())
    target.clear(0)
    return np.concatenate(rows)


def is_same(target: LlamaTarget, prompt: list[int], sampling: Sampling, plain: Result, drafted: Result) -> bool:
    """Whether the texts are equal.

    Raises:
        AssertionError: they differ, and the deviation between widths does not explain it.
    """
    pairs = zip(plain.tokens, drafted.tokens, strict=True)
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return True
    rows = rows_of(target, prompt, plain.tokens, 1)
    widths = range(2, OPTIONS.n_rows_max + 1)
    deviation = max(float(np.abs(rows_of(target, prompt, plain.tokens, width) - rows).max()) for width in widths)
    assert deviation < 0.02 * float(np.std(rows)), "so large a deviation would explain anything"
    row, sampler = rows[at], Sampler(sampling, [*prompt, *plain.tokens[:at]])
    position = len(prompt) + at
    assert sampler.sample(row, position) == plain.tokens[at], "plain decoding is not repeatable"
    row[drafted.tokens[at]] += 2 * deviation
    assert sampler.sample(row, position) == drafted.tokens[at], f"token {at} differs by more than {deviation}"
    return False


def compare(target: LlamaTarget, n_prompts: int) -> None:
    session = Session(target)
    n_same = n_drafted = n_accepted = n_replayed = 0
    for i, prompt in enumerate(prompts(n_prompts)):
        for sampling in (Sampling(), SAMPLED):
            plain = tell(session, prompt, sampling)
            assert plain.result.report.drafted == 0
            drafted = tell(session, prompt, sampling, Drafting(Nearly(prompt, plain.result.tokens, i), target.n_vocab))
            report = drafted.result.report
            assert report.drafter_off_reason is None
            assert report.rollback == target.capabilities.rollback
            n_same += is_same(target, prompt, sampling, plain.result, drafted.result)
            session.forget()
            n_drafted += report.drafted
            n_accepted += report.accepted
            n_replayed += drafted.n_replayed
    assert n_same >= 0.95 * 2 * n_prompts
    assert 0.3 * n_drafted < n_accepted < 0.9 * n_drafted, "drafts were to be rejected anywhere"
    assert (n_replayed > 0) == (target.capabilities.rollback == "replay")


def test_drafted_text_is_plain_text(target: LlamaTarget) -> None:
    compare(target, N_FAST)


@pytest.mark.slow
def test_drafted_text_is_plain_text_on_many_prompts(target: LlamaTarget) -> None:
    compare(target, N_ALL)


def test_a_long_text_is_the_same_too(target: LlamaTarget) -> None:
    """Longer than a batch, than a window, and than what was ever cached before."""
    session = Session(target)
    (prompt,) = prompts(1, 400)
    plain = tell(session, prompt, SAMPLED).result
    session.forget()
    drafted = tell(session, prompt, SAMPLED, Drafting(Nearly(prompt, plain.tokens, 5), target.n_vocab)).result
    assert drafted.report.accepted > 0
    assert is_same(target, prompt, SAMPLED, plain, drafted)


def test_the_next_turn_keeps_what_the_memory_can_give(target: LlamaTarget) -> None:
    """The next prompt leaves this text at its end, at a drafted round before it, and near its beginning."""
    (prompt,) = prompts(1)
    session = Session(target)
    plain = tell(session, prompt, SAMPLED).result.tokens
    for n_same in (N_TOKENS, N_TOKENS - 8, 5):
        session.forget()
        tell(session, prompt, SAMPLED, Drafting(Nearly(prompt, plain[: N_TOKENS - 8], 1), target.n_vocab))
        again = [*prompt, *plain[:n_same], *b" and then "]
        told = tell(session, again, SAMPLED).result
        session.forget()
        fresh = tell(session, again, SAMPLED).result
        assert fresh.usage.cached_tokens == 0
        assert is_same(target, again, SAMPLED, fresh, told)
        n_cached = told.usage.cached_tokens
        if target.capabilities.rewind:
            assert n_cached >= len(prompt) + n_same - 1
        elif n_same == N_TOKENS:
            assert n_cached == len(prompt) + n_same - 1
        elif target.capabilities.rollback == "replay" and n_same > 5:
            assert len(prompt) < n_cached <= len(prompt) + n_same
        else:
            assert n_cached == 0


def stopped(engine: Engine, session: Session, prompt: list[int], stop: str, drafter: str | ScriptedDrafter) -> Result:
    limits = Limits(40, (stop,), max_draft=7, fixed_draft=None if drafter == "none" else 7, ignore_eog=True)
    stream = engine.stream(prompt, SAMPLED, limits, drafter=drafter, session=session)
    for _ in stream:
        pass
    return stream.result


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", gguf_maker.ARCHITECTURES)
def test_three_turns_with_stop_strings_and_cancelled_answers(files: dict[str, Path], kind: str) -> None:
    """Source: xybrid-ai/xybrid#109: the second chat on a recurrent model; sgl-project/sglang#23802: a stop string early
    in an accepted draft."""
    with Engine.open(files[kind], EngineConfig(n_ctx=512, threads=1, max_draft=7), n_sessions=2) as engine:
        talk, alone = engine.session(), engine.session()
        (prompt,), n_told = prompts(1, 30), 0
        for turn in range(3):
            whole = stopped(engine, alone, prompt, "\0\0\0", "none")
            letters = whole.text[12:14]
            cut = stopped(engine, alone, prompt, letters, "none")
            assert cut.finish_reason == "stop"
            drafter = Nearly(prompt, whole.tokens, turn)
            drafted = stopped(engine, talk, prompt, letters, drafter)
            assert (drafted.text, drafted.tokens) == (cut.text, cut.tokens)
            assert drafted.finish_reason == "stop"
            assert drafted.usage.cached_tokens >= n_told
            limits = Limits(40, fixed_draft=7, ignore_eog=True)
            left = engine.stream(prompt, SAMPLED, limits, drafter=drafter, session=talk)
            pieces = [next(left) for _ in range(5)]
            left.cancel()
            pieces.extend(left)
            said = left.result.tokens
            assert left.result.finish_reason == "cancelled"
            assert said == whole.tokens[: len(said)] == tuple(token for piece in pieces for token in piece.tokens)
            n_told = len(prompt)  # a cancelled answer costs no more than its own end
            prompt = [*prompt, *said, *[3 + byte for byte in b" and then "]]
            alone.forget()
