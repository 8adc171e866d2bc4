"""Several answers in one pass: each says what it says alone, whoever is cancelled, fails or ends beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf_maker
import numpy as np
import pytest
from harness import MEMORIES, piece
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.answer import Stream, play_together
from edgespec.config import EngineConfig
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.errors import EvalError
from edgespec.interfaces import Capabilities, Chunk, Limits, Plan, Result, Rows, Sampling
from edgespec.testing import FakeClock, FakeTarget

LIMITS = Limits(max_tokens=30, ignore_eog=True)


class Watched(FakeTarget):
    """Fails the passes whose numbers are told; remembers which sequences shared a pass."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(n_vocab=40, n_ctx=256, noise=0.05, capabilities=capabilities)
        self.fail: frozenset[int] = frozenset()
        self.together: list[tuple[int, ...]] = []

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        self.together.append(tuple(plan.seq_id for plan in plans))
        if self.n_evals in self.fail:
            self.n_evals += 1
            raise EvalError("refused")
        return super().eval(plans)


@dataclass
class Small:
    """As much of an engine as streams need, on a fake target."""

    target: Watched
    n_seats: int = 0
    clock: FakeClock = field(default_factory=lambda: FakeClock(0.01))

    def stream(self, prompt: Sequence[int], drafted: bool = False) -> Stream:
        session = Session(self.target, self.n_seats)
        self.n_seats += 1
        desk = Drafting(SuffixDrafter(), self.target.n_vocab) if drafted else None
        return Stream(self, Generation(session, prompt, Sampling(), LIMITS, piece, self.clock, desk), True)

    def advance(self, *generations: Generation) -> list[Chunk]:
        return play_round(generations, self.target, self.clock)

    def finish(self, generation: Generation, owned: bool) -> Result:
        return generation.result()


def small(capabilities: Capabilities = MEMORIES[1]) -> Small:
    return Small(Watched(capabilities))


def finish(streams: Sequence[Stream]) -> list[list[Chunk]]:
    """Play to the end; the pieces of each."""
    told: list[list[Chunk]] = [[] for _ in streams]
    for _ in range(10_000):
        chunks = play_together(streams)
        if not any(chunks):
            return told
        for mine, chunk in zip(told, chunks, strict=True):
            mine.extend([chunk] if chunk else [])
    raise AssertionError("it does not end")


def ids(pieces: Sequence[Chunk]) -> tuple[int, ...]:
    return tuple(token for chunk in pieces for token in chunk.tokens)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 39), min_size=1, max_size=60), min_size=1, max_size=5),
    st.sampled_from(MEMORIES),
    st.booleans(),
)
def test_together_each_says_what_it_says_alone(prompts: list[list[int]], memory: Capabilities, drafted: bool) -> None:
    alone = [list(small(memory).stream(prompt)) for prompt in prompts]
    engine = small(memory)
    streams = [engine.stream(prompt, drafted) for prompt in prompts]
    told = finish(streams)
    assert [ids(pieces) for pieces in told] == [ids(pieces) for pieces in alone]
    assert ["".join(c.text for c in pieces) for pieces in told] == [stream.result.text for stream in streams]
    assert max(map(len, engine.target.together)) == min(len(prompts), memory.sessions_per_batch)


def test_who_is_cancelled_takes_no_other_along() -> None:
    engine = small()
    streams = [engine.stream([1, 2, 3 + i]) for i in range(3)]
    alone = list(small().stream([1, 2, 3]))
    first = [play_together(streams) for _ in range(5)]
    streams[1].cancel()
    told = finish(streams)
    assert streams[1].result.finish_reason == "cancelled"
    assert len(streams[1].result.tokens) == 5
    assert ids([c for chunks in first if (c := chunks[0])]) + ids(told[0]) == ids(alone)
    assert streams[2].result.finish_reason == "length"
    assert not engine.target.aborted


def test_a_pass_that_fails_ends_its_own_answers_only() -> None:
    engine = small(MEMORIES[2])  # one sequence a pass
    streams = [engine.stream([1, 2, 3 + i]) for i in range(3)]
    for _ in range(4):
        play_together(streams)
    engine.target.fail = frozenset({engine.target.n_evals + 1})
    with pytest.raises(EvalError, match="refused"):
        play_together(streams)
    assert (streams[1].result.finish_reason, len(streams[1].result.tokens)) == ("cancelled", 4)
    finish(streams)
    alone = list(small(MEMORIES[2]).stream([1, 2, 5]))
    assert [len(stream.result.tokens) for stream in streams] == [30, 4, 30]
    assert streams[2].result.tokens == ids(alone)


def test_one_that_has_ended_gives_none_and_nothing_is_nothing() -> None:
    engine = small()
    early, late = engine.stream([1, 2]), engine.stream([2, 1])
    list(early)
    chunks = play_together([early, late])
    assert chunks[0] is None
    assert chunks[1] is not None
    late.close()
    assert play_together([early, late]) == [None, None]
    assert play_together([]) == []


STAIRS_MS = {1: 7.0, 2: 10.8, 3: 13.0, 4: 15.5, 6: 21.5, 8: 25.0, 16: 48.8, 150: 450.0}
"""A pass by rows, as measured on x86 with Q4_1 weights; straight lines between."""


def pace(n_sessions: int, text: Sequence[int], drafted: bool) -> float:
    """Tokens a second of all answers together, on a clock that counts by `STAIRS_MS`."""
    clock = FakeClock()
    target = FakeTarget(
        300, 600, n_batch=512, n_rows_max=512, capabilities=Capabilities(8), clock=clock, script=text,
        cost_s=lambda width, n_ctx: float(np.interp(width, [*STAIRS_MS], [*STAIRS_MS.values()])) / 1000,
    )  # fmt: skip
    cost = CostModel(CostTable({width: ms / 1000 for width, ms in STAIRS_MS.items() if width <= 16}))
    active = [
        Generation(
            Session(target, i), text[: 90 + 7 * i], Sampling(), Limits(150, ignore_eog=True), piece, clock,
            Drafting(SuffixDrafter(), 300) if drafted else None,
            Controller(cost, Acceptance(Prior(), 0.0)) if drafted else None,
        )
        for i in range(n_sessions)
    ]  # fmt: skip
    while any(generation.prefilling for generation in active):
        play_round(active, target, clock)
    began_s, n_tokens = clock.now_s, 0
    while active:
        n_tokens += sum(len(chunk.tokens) for chunk in play_round(active, target, clock))
        active = [generation for generation in active if generation.finish_reason is None]
    return n_tokens / (clock.now_s - began_s)


@pytest.mark.parametrize("n_sessions", [1, 2, 4, 8])
@pytest.mark.parametrize(("changed", "least"), [(0.02, 0.97), (0.15, 0.96), (0.5, 0.97)])
def test_what_one_session_drafts_holds_up_no_other(n_sessions: int, changed: float, least: float) -> None:
    """A draft that pays for its own session may cost all of them more: eight together lost a third before."""
    rng = random.Random(5)
    period = [rng.randrange(1, 299) for _ in range(45)]
    text = [rng.randrange(1, 299) if rng.random() < changed else period[i % 45] for i in range(500)]
    assert pace(n_sessions, text, True) >= least * pace(n_sessions, text, False)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", gguf_maker.KINDS)
@pytest.mark.parametrize("n_seats", [3, 2])
def test_a_real_model(kind: str, n_seats: int, tmp_path: Path) -> None:
    """Also with more answers than places in the cache, which then take turns in them."""
    path = gguf_maker.make(tmp_path / "tiny.gguf", kind)
    prompts = [list(b"abcabcabc the cat sat"), list(b"the mat, the mat"), list(b"abab")]
    with Engine.open(path, EngineConfig(n_ctx=768, threads=1), n_sessions=n_seats) as engine:
        plain = [ids(list(engine.stream(prompt, Sampling(), LIMITS, drafter="none"))) for prompt in prompts]
        for drafter in ("none", "ngram"):
            streams = [engine.stream(prompt, Sampling(), LIMITS, drafter=drafter) for prompt in prompts]
            assert [ids(pieces) for pieces in finish(streams)] == plain
            if n_seats == len(prompts):  # whoever lost its place reads its whole text anew: no rounds of decoding
                assert all(stream.result.report.rounds for stream in streams)
