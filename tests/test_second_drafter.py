"""Drafters that are asked where the first has nothing: in turn, and without taking its credit."""

from __future__ import annotations

import pytest

from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller, chain_parents
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.interfaces import Draft, Limits, Sampling
from edgespec.testing import FakeClock, FakeTarget, ScriptedDrafter

STAIRS = {
    "ggml": {1: 1.0, 2: 1.93, 4: 2.83, 8: 4.68, 16: 8.42},
    "kernels, a small model": {1: 1.0, 2: 1.73, 4: 2.12, 8: 2.94, 16: 4.91},
    "kernels, 1B": {1: 1.0, 2: 1.21, 4: 1.33, 8: 1.65, 16: 3.19},
}


def certain(n: int) -> Draft:
    return Draft((1,) * n, chain_parents(n), (0,) * n, (1.0,) * n)


@pytest.mark.parametrize("stairs", STAIRS.values(), ids=STAIRS)
def test_what_a_second_drafter_loses_leaves_the_first_one_a_token(stairs: dict[int, float]) -> None:
    for behind in (True, False):
        controller = Controller(CostModel(CostTable(stairs)), Acceptance(Prior(), 0.0))
        draft = controller.trim("second", certain(15), 100, behind=behind)
        assert draft.tokens
        width = 1 + len(draft.tokens)
        controller.book(width, 100, 1, controller.cost.seconds(width, 100), 0.0)  # all of it was wrong
        went_on = bool(controller.trim("first", certain(1), 101).tokens)
        assert went_on or not behind


def test_alone_a_wrong_draft_may_take_all_credit() -> None:
    """Else the rule above would limit drafts for nothing."""
    controller = Controller(CostModel(CostTable(STAIRS["kernels, a small model"])), Acceptance(Prior(), 0.0))
    width = 1 + len(controller.trim("second", certain(15), 100).tokens)
    controller.book(width, 100, 1, controller.cost.seconds(width, 100), 0.0)
    assert not controller.trim("first", certain(1), 101).tokens


def test_each_is_asked_where_those_before_it_have_nothing() -> None:
    asked: list[str] = []

    def scripted(name: str, turns: set[int]) -> Drafting:
        def propose(context: object, limit: int) -> list[int]:
            asked.append(name)
            return [3] if len(asked) in turns else []

        return Drafting(ScriptedDrafter(propose, name), 50)

    target = FakeTarget(50, 100)
    session = Session(target)
    drafters = [scripted("a", {1}), scripted("b", {3}), scripted("c", set())]
    generation = Generation(
        session, [1, 2], Sampling(), Limits(6, ignore_eog=True), lambda token: b"x", FakeClock(0.01), drafters[0],
        others=drafters[1:],
    )  # fmt: skip
    generation.trace = []
    for _ in range(4):
        play_round([generation], target, FakeClock(0.01))
    assert [found.drafter for found in generation.trace] == ["a", "b", "c"]
    assert asked == ["a", "a", "b", "a", "b", "c"]
    assert generation.result().report.drafter == "a+b+c"
