"""A drafter that draws its guesses with the target's noise is right more often, and the text is the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.sampling import Sampler
from edgespec.core.session import Session
from edgespec.draft.isolated import IsolatedDrafter
from edgespec.interfaces import Draft, Limits, Plan, Row, Sampling
from edgespec.testing import FakeClock, FakeTarget

N_DRAFT = 3
WARM = Sampling(1.0, seed=3)


def target() -> FakeTarget:
    return FakeTarget(n_ctx=700, eog=(), noise=0.3, seed=1)


class Similar:
    """Knows the target's distribution up to some noise, and draws from it as `way` says."""

    name = "similar"

    def __init__(self, way: str) -> None:
        self._way, self._model, self._sampling = way, target(), Sampling()

    def draw_as(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        text, n = list(context), min(limit, N_DRAFT)
        for _ in range(n):
            text.append(self._guess(self._row(text), len(text)))
        tokens = tuple(text[len(context) :])
        return Draft(tokens, tuple(range(-1, n - 1)), (0,) * n, (0.9,) * n)

    def close(self) -> None:
        """Nothing to free."""

    def _row(self, text: list[int]) -> Row:
        self._model.clear(0)
        for first in range(0, len(text), self._model.n_batch):
            chunk = text[first : first + self._model.n_batch]
            rows = self._model.eval([Plan(0, first, chunk, rows=True)])[0]
        off = np.random.default_rng(len(text)).normal(0.0, 0.5, self._model.n_vocab)
        row: Row = (rows[-1] + off).astype(np.float32)
        return row

    def _guess(self, row: Row, position: int) -> int:
        if self._way == "likeliest":
            return int(row.argmax())
        seed = self._sampling.seed + (1000 if self._way == "independent" else 0)
        return Sampler(Sampling(self._sampling.temperature, seed=seed), ()).sample(row, position)


def written(drafting: Drafting | None, n_tokens: int = 300) -> Generation:
    model = target()
    limits = Limits(n_tokens, fixed_draft=N_DRAFT)
    generation = Generation(Session(model), [5, 6, 7], WARM, limits, lambda _: b"x", FakeClock(0.001), drafting)
    while generation.finish_reason is None:
        play_round([generation], model, FakeClock(0.001))
    return generation


def test_shared_noise_raises_acceptance_and_leaves_the_text() -> None:
    plain = written(None).tokens
    accepted = {}
    for way in ("shared", "independent", "likeliest"):
        drafted = written(Drafting(Similar(way), target().n_vocab))
        assert drafted.tokens == plain
        report = drafted.result().report
        accepted[way] = report.accepted / report.drafted
    assert accepted["shared"] > accepted["likeliest"] + 0.05
    assert accepted["shared"] > accepted["independent"] + 0.15


def test_a_drafter_on_its_own_thread_is_told_too() -> None:
    told: list[Sampling] = []

    class Told(Similar):
        def draw_as(self, sampling: Sampling) -> None:
            told.append(sampling)

    isolated = IsolatedDrafter(Told("shared"), 30.0)
    written(Drafting(isolated, target().n_vocab), 8)
    isolated.close()
    assert told == [WARM]


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_one_that_cannot_be_told_is_cut_off_and_named(on_a_thread: bool) -> None:
    class Deaf(Similar):
        def draw_as(self, sampling: Sampling) -> None:
            raise OSError("no ear")

    drafter = IsolatedDrafter(Deaf("shared"), 30.0) if on_a_thread else Deaf("shared")
    drafting = Drafting(drafter, target().n_vocab)
    assert written(drafting, 8).tokens == written(None, 8).tokens
    assert drafting.off_reason is not None
    assert "no ear" in drafting.off_reason
    drafting.close()
