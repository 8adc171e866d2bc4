"""A foreign drafter on its own thread: never waited for beyond the deadline, late guesses used where they fit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from edgespec.core.drafting import Drafting
from edgespec.draft.isolated import IsolatedDrafter
from edgespec.interfaces import Draft
from edgespec.testing import ScriptedDrafter

LONG_S = 30.0
"""A deadline that is never reached where the answer is to come in time."""


class Gate:
    """A drafter that counts up from the last token, when it is let through."""

    name = "gate"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[int] = []
        self.n_closed = 0

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        self.asked.append(len(context))
        self.open.wait(LONG_S)
        tokens = tuple(context[-1] + 1 + i for i in range(limit))
        return Draft(tokens, tuple(range(-1, limit - 1)), (0,) * limit, (0.9,) * limit)

    def close(self) -> None:
        self.n_closed += 1
        self.open.set()


def test_an_answer_in_time_is_the_drafters_own() -> None:
    drafter = IsolatedDrafter(ScriptedDrafter(lambda c, n: [c[-1] + 1] * n), LONG_S)
    assert drafter.propose([1, 2], 2).tokens == (3, 3)
    assert drafter.propose([1, 2, 3], 1).tokens == (4,)
    drafter.close()
    drafter.close()


def test_a_late_answer_is_used_where_the_text_went_that_way() -> None:
    gate = Gate()
    drafter = IsolatedDrafter(gate, 0.0)
    assert drafter.propose([1], 5).tokens == ()  # guesses 2 3 4 5 6, but not yet
    gate.open.set()
    drafter._deadline_s = LONG_S  # the answer is on its way
    assert drafter.propose([1, 2, 3], 5).tokens == (4, 5, 6)
    drafter.close()


def test_a_late_answer_that_no_longer_fits_is_dropped() -> None:
    gate = Gate()
    drafter = IsolatedDrafter(gate, 0.0)
    assert drafter.propose([1], 5).tokens == ()
    gate.open.set()
    drafter._deadline_s = LONG_S
    assert drafter.propose([1, 9], 5).tokens == ()  # guessed 2, came 9: asks anew
    assert drafter.propose([1, 9], 2).tokens == (10, 11)
    drafter.close()


def test_always_late_gives_up_and_nothing_hangs() -> None:
    gate = Gate()
    drafting = Drafting(IsolatedDrafter(gate, 0.001), 100)
    for n in range(1, 5):
        assert drafting.propose(list(range(n)), 4).tokens == ()
    assert drafting.off_reason == "gate raised DrafterError: too late 3 times in a row (deadline 1 ms)"
    assert len(gate.asked) == 1  # one question at a time
    drafting.close()
    gate.open.set()


def test_what_it_raises_reaches_the_round() -> None:
    def broken(context: Sequence[int], limit: int) -> Sequence[int]:
        raise KeyError("gone")

    drafter = IsolatedDrafter(ScriptedDrafter(broken), LONG_S)
    with pytest.raises(KeyError):
        drafter.propose([1], 1)
    drafter.close()


def test_close_ends_the_thread_and_leaves_the_drafter_to_its_owner() -> None:
    gate = Gate()
    gate.open.set()
    drafter = IsolatedDrafter(gate, LONG_S)
    drafter.propose([1], 1)
    drafter.close()
    thread = drafter._thread
    assert thread is not None
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert gate.n_closed == 0
