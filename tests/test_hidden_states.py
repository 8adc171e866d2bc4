"""The target's hidden states: of the right row, for nothing where nobody asks, and without changing a single logit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf_maker
import numpy as np
import pytest
from harness import piece

from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.offers import Hidden
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.errors import EvalError
from edgespec.interfaces import Draft, Limits, Plan, Row, Sampling
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions
from edgespec.testing import FakeClock, FakeTarget

TOKENS = list(b"the cat sat on the mat")


def chain(tokens: Sequence[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (0,) * n, (0.5,) * n)


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = gguf_maker.make(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", request.param, output_scale=1.0)
    options = TargetOptions(n_ctx=256, n_threads=1, n_seq_max=3, n_rows_max=16)
    with load(path, options) as opened:
        yield opened
        for seq_id in range(3):
            opened.clear(seq_id)


OUTPUT = gguf_maker._matrix(np.random.default_rng(8), gguf_maker.N_VOCAB, gguf_maker.N_EMBD)
"""The output matrix of these models: what it makes of a state are the logits of its row."""


def state_of(target: LlamaTarget, row: int, seq_id: int = 0) -> Hidden:
    found = target.hidden(seq_id, row)
    assert found is not None
    assert found.shape == (target.n_hidden,) == (gguf_maker.N_EMBD,)
    return found


def agree(state: Hidden, row: Row) -> bool:
    return bool(np.allclose(OUTPUT @ state, row, atol=1e-3, rtol=1e-3))


def test_each_rows_state_gives_its_logits(target: LlamaTarget) -> None:
    target.clear(0)
    target.eval([Plan(0, 0, TOKENS[:-1], rows=False)])
    rows = target.eval([Plan(0, len(TOKENS) - 1, TOKENS[-1:], chain((70, 80, 90)), hidden=True)])[0]
    states = [state_of(target, row).copy() for row in range(4)]
    assert [agree(state, row) for state, row in zip(states, rows, strict=True)] == [True] * 4
    assert not agree(states[0], rows[1])
    assert target.retain(0, len(TOKENS), (0,))
    rows = target.eval([Plan(0, len(TOKENS) + 1, [33], hidden=True)])[0]
    assert agree(state_of(target, 0), rows[0])


def test_nothing_is_there_for_prompts_or_where_nobody_asked(target: LlamaTarget) -> None:
    target.clear(0)
    target.eval([Plan(0, 0, TOKENS, hidden=True)])
    assert target.hidden(0, 0) is None
    target.eval([Plan(0, len(TOKENS), [40], hidden=True)])
    state_of(target, 0)
    target.eval([Plan(0, len(TOKENS) + 1, [41])])
    assert target.hidden(0, 0) is None
    assert target.hidden(2, 0) is None


def test_logits_are_the_same_bit_for_bit_with_states_and_without(target: LlamaTarget) -> None:
    answers = []
    for hidden in (False, True, False):
        target.clear(0)
        target.eval([Plan(0, 0, TOKENS[:-1], rows=False)])
        at, found = len(TOKENS) - 1, []
        for draft in ((), (70, 80, 90), (), (60,)):
            found.append(target.eval([Plan(0, at, [50], chain(draft), hidden=hidden)])[0].copy())
            assert target.retain(0, at + 1)
            at += 1
        answers.append(np.concatenate(found))
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


def test_several_sessions_in_one_pass(target: LlamaTarget) -> None:
    for seq_id in (0, 1):
        target.clear(seq_id)
        target.eval([Plan(seq_id, 0, TOKENS[seq_id:-1], rows=False)])
    first, second = len(TOKENS) - 1, len(TOKENS) - 2
    plans = [Plan(0, first, [90], chain((70, 71))), Plan(1, second, [91], chain((72,)), hidden=True)]
    rows = target.eval(plans)
    assert agree(state_of(target, 1, seq_id=1), rows[1][1])
    assert agree(state_of(target, 2, seq_id=0), rows[0][2])
    # One of them takes in a prompt: every token of the pass would become an output.
    assert target.retain(0, first + 1)
    rows = target.eval([Plan(0, first + 1, [92], hidden=True), Plan(2, 0, TOKENS)])
    assert target.hidden(0, 0) is None
    assert len(rows[0]) == len(rows[1]) == 1


@pytest.mark.model
def test_the_default_models_logits_are_the_same_bit_for_bit(default_model: Path) -> None:
    with load(default_model, TargetOptions(n_ctx=256, n_threads=1, n_rows_max=8)) as target:
        prompt = target.encode("The quick brown fox jumps over the lazy dog, and the dog")
        answers = []
        for hidden in (False, True):
            target.clear(0)
            target.eval([Plan(0, 0, prompt[:-1], rows=False)])
            at, found = len(prompt) - 1, []
            for width in (1, 2, 4, 8, 1):
                plan = Plan(0, at, prompt[-1:], chain(prompt[: width - 1]), hidden=hidden)
                found.append(target.eval([plan])[0].copy())
                assert target.retain(0, at + 1)
                at += 1
                state = target.hidden(0, width - 1)
                assert (state is not None) == hidden
                assert state is None or (len(state) == target.info.n_embd and bool(np.isfinite(state).all()))
            answers.append(np.concatenate(found))
        assert np.array_equal(answers[0], answers[1])


class ShowingTarget(FakeTarget):
    """Its state behind a row is the text of that row, as numbers."""

    n_hidden = 512

    def hidden(self, seq_id: int, row: int) -> Hidden | None:
        return as_state(self._branches[seq_id][2][row])


def as_state(text: Sequence[int]) -> Hidden:
    state = np.full(512, -1, np.float32)
    state[: len(text)] = text
    return state


class Reader:
    """Guesses right in part, and remembers what it was shown."""

    name = "reader"
    inline = True

    def __init__(self, script: Sequence[int], *, dear_s: float = 0.0, clock: FakeClock | None = None) -> None:
        self.script, self.clock, self.dear_s = script, clock, dear_s
        self.dear = dear_s > 0
        self.reads_hidden = True
        self.shown: list[tuple[int, bool]] = []
        self.n_calls = 0

    def observe(self, context: Sequence[int], hidden: Hidden) -> None:
        self.shown.append((len(context), np.array_equal(hidden, as_state(context[:-1]))))

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        self.n_calls += 1
        if self.clock is not None:
            self.clock.now_s += self.dear_s
        guess = list(self.script[len(context) : len(context) + min(limit, 3)])
        if len(context) % 3 == 0 and guess:
            guess[-1] = 1
        return chain(guess)

    def close(self) -> None:
        pass


def play(target: FakeTarget, drafter: Reader, clock: FakeClock, controller: Controller | None, n: int) -> Generation:
    generation = Generation(
        Session(target), [5, 6, 7], Sampling(), Limits(n, ignore_eog=True), piece, clock,
        Drafting(drafter, target.n_vocab), controller,
    )  # fmt: skip
    while generation.finish_reason is None:
        play_round([generation], target, clock)
    return generation


def test_a_drafter_is_shown_the_state_its_newest_token_was_drawn_from() -> None:
    script = [5, 6, 7, *(2 + n * 7 % 30 for n in range(60))]
    drafter = Reader(script)
    generation = play(ShowingTarget(script=script), drafter, FakeClock(), None, 50)
    assert generation.tokens == script[3:53]
    assert drafter.shown
    assert all(right for _, right in drafter.shown)
    assert len(drafter.shown) == generation.stats.rounds  # after every pass but that of the prompt


def test_a_state_that_is_not_there_ends_the_drafter_and_not_the_answer() -> None:
    class Target(ShowingTarget):
        def hidden(self, seq_id: int, row: int) -> Hidden | None:
            raise EvalError("gone")

    script = [5, 6, 7, *(2 + n * 7 % 30 for n in range(60))]
    drafter = Reader(script)
    generation = play(Target(script=script), drafter, FakeClock(), None, 50)
    assert generation.tokens == script[3:53]
    assert generation.result().report.drafter_off_reason == "reader has nothing to read: gone"
    assert not drafter.shown


def test_a_target_without_states_is_not_asked_for_any() -> None:
    script = [5, 6, 7, *(2 + n * 7 % 30 for n in range(60))]
    asked: list[bool] = []

    class Target(FakeTarget):
        def eval(self, plans: Sequence[Plan]) -> list[Row]:
            asked.extend(plan.hidden for plan in plans)
            return super().eval(plans)

    drafter = Reader(script)
    play(Target(script=script), drafter, FakeClock(), None, 50)
    assert not drafter.shown
    assert not any(asked)
    drafter = Reader(script)
    drafter.reads_hidden = False
    play(ShowingTarget(script=script), drafter, FakeClock(), None, 50)
    assert not drafter.shown


@pytest.mark.parametrize("share", [0.05, 0.5, 5.0])
def test_a_dear_drafter_that_is_never_right_is_hardly_asked(share: float) -> None:
    """Its calls cost a share of a step each: the answer takes a hundredth longer at most, and a few steps."""
    n, step_s = 400, 0.01
    table = CostTable({1: step_s, 2: 1.7 * step_s, 4: 2.4 * step_s, 8: 3.6 * step_s, 16: 5.8 * step_s})
    script = [5, 6, 7, *(2 + k * 7 % 30 for k in range(n + 20))]
    clock = FakeClock()
    costs = dict(table.base_s)
    target = ShowingTarget(
        script=script,
        n_ctx=512,
        clock=clock,
        cost_s=lambda width, _: float(np.interp(width, list(costs), list(costs.values()))),
    )
    drafter = Reader([1] * len(script), dear_s=share * step_s, clock=clock)
    controller = Controller(CostModel(table), Acceptance(Prior(), 0.0))
    generation = play(target, drafter, clock, controller, n)
    assert generation.tokens == script[3 : n + 3]
    assert clock.now_s / step_s <= n * 1.01 + 2.8 + share
    assert drafter.n_calls >= (3 if share < 1 else 1)
