"""A foreign drafter on its own thread: the round waits for it until a deadline and no longer.

A guess that comes late is still used where the text meanwhile went the way it guessed.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Sequence

from edgespec.core.controller import cut
from edgespec.errors import DrafterError
from edgespec.interfaces import NO_DRAFT, Draft, Drafter, DrawingDrafter, Sampling

DEADLINE_S = 0.002
"""How long a round waits: well under a decode step of any model worth drafting for."""
_MAX_LATE = 3
"""Answers in a row that came too late to be of any use before the drafter is given up."""


class IsolatedDrafter:
    """Runs `propose` of another drafter on a daemon thread, one question at a time."""

    def __init__(
        self,
        drafter: Drafter,
        deadline_s: float = DEADLINE_S,
        settle: Callable[[], None] | None = None,
        *,
        owned: bool = False,
    ) -> None:
        """The thread starts with the first question; `settle` is called on it before each one, to choose its cores.

        `owned`: the drafter is closed with this one, on the thread where it ran.
        """
        self._owned = owned
        self.name = drafter.name
        self._drafter = drafter
        self._deadline_s = deadline_s
        self._settle = settle
        self._changed = threading.Condition()
        self._sampling: Sampling | None = None
        self._question: tuple[tuple[int, ...], int] | None = None
        self._answer: tuple[tuple[int, ...], Draft | BaseException] | None = None
        self._busy = False
        self._closed = False
        self._n_late = 0
        self._thread: threading.Thread | None = None

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """The drafter's answer if it comes in time, or what is left of an earlier one that proved right.

        Raises:
            DrafterError: it was too late several times in a row.
            Exception: whatever the drafter raised.
        """
        text = tuple(context)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"drafter-{self.name}", daemon=True)
                self._thread.start()
            if not self._busy and self._answer is None:
                self._ask(text, limit)
            self._changed.wait_for(lambda: self._answer is not None, self._deadline_s)
            if self._answer is None:
                self._late()
                return NO_DRAFT
            asked, draft = self._answer
            self._answer = None
            if isinstance(draft, Exception):
                raise draft
            if isinstance(draft, BaseException):
                # SystemExit and the like are meant for the drafter's thread, not for who waits for an answer.
                raise DrafterError(f"ended its thread with {type(draft).__name__}")
            if asked != text:
                draft = _remainder(draft, asked, text)
                if not draft.tokens:
                    self._late()
                    self._ask(text, limit)
                    return NO_DRAFT
            self._n_late = 0
            return cut(draft, limit)

    def draw_as(self, sampling: Sampling) -> None:
        """Tell the drafter before its next question."""
        with self._changed:
            self._sampling = sampling

    def close(self) -> None:
        """Let the thread end after the question it is at; a hung one is left behind, as a daemon.

        Unless it is owned the drafter itself stays open: it belongs to who made it, and may serve other answers.

        Raises:
            Exception: whatever an owned drafter raised that was never asked.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify_all()
        if self._owned and first and self._thread is None:
            self._drafter.close()

    def _ask(self, text: tuple[int, ...], limit: int) -> None:
        self._question = (text, limit)
        self._busy = True
        self._changed.notify_all()

    def _late(self) -> None:
        self._n_late += 1
        if self._n_late >= _MAX_LATE:
            raise DrafterError(f"too late {self._n_late} times in a row (deadline {self._deadline_s * 1e3:g} ms)")

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._question is not None or self._closed)
                if self._closed or self._question is None:
                    break
                (text, limit), self._question = self._question, None
                sampling, self._sampling = self._sampling, None
            answer: Draft | BaseException
            try:
                if self._settle is not None:
                    self._settle()
                if sampling is not None and isinstance(self._drafter, DrawingDrafter):
                    self._drafter.draw_as(sampling)
                answer = _plain(self._drafter.propose(text, limit))
            except BaseException as error:
                answer = error
            with self._changed:
                self._answer, self._busy = (text, answer), False
                self._changed.notify_all()
        if self._owned:
            with contextlib.suppress(Exception):  # nobody is left who could be told; the text does not depend on it
                self._drafter.close()


def _plain(draft: Draft) -> Draft:
    """The same draft of plain ints and floats, whatever array or sequence types it came in.

    Raises:
        TypeError, ValueError, AttributeError: it is not a draft.
    """
    confidence = tuple(float(p) for p in draft.confidence)
    if not all(0.0 <= p <= 1.0 for p in confidence):
        raise ValueError("a confidence is not in 0..1")
    tokens, parents, strength = (
        tuple(operator.index(x) for x in part) for part in (draft.tokens, draft.parents, draft.strength)
    )
    return Draft(tokens, parents, strength, confidence)


def _remainder(draft: Draft, asked: tuple[int, ...], text: tuple[int, ...]) -> Draft:
    """What is left of a chain guessed for `asked`, now that the text is `text`; nothing where it went another way."""
    new = text[len(asked) :]
    n = len(new)
    if not n or text[: len(asked)] != asked or draft.tokens[:n] != new:
        return NO_DRAFT
    if draft.parents[: len(draft.tokens)] != tuple(range(-1, len(draft.tokens) - 1)):
        return NO_DRAFT
    n_left = len(draft.tokens) - n
    return Draft(draft.tokens[n:], tuple(range(-1, n_left - 1)), draft.strength[n:], draft.confidence[n:])
