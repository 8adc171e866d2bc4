"""Texts against plain decoding: where they first differ and how near the two tokens were; and how repetitive they are.

Knows nothing of speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgespec.bench.modes import PLAIN
from edgespec.bench.runner import Run
from edgespec.core.noise import gumbel
from edgespec.core.session import Session
from edgespec.errors import EdgespecError
from edgespec.interfaces import Row, Sampling, Target

GRAM = 4
REPETITIVE = 0.5
"""A share of distinct 4-grams below this is a loop, and what copying gains on it says nothing about real text."""


class RowEngine(Protocol):
    """What re-evaluating a prefix needs of an engine."""

    @property
    def target(self) -> Target:
        """The model."""
        ...

    def session(self) -> Session:
        """A new sequence."""
        ...

    def release(self, session: Session) -> None:
        """Forget a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not plain's. Tokens are None where one of the two texts had ended."""

    question_id: str
    group: str
    mode: str
    rounds: tuple[int, ...]
    """The rounds in which exactly this was seen."""
    position: int
    """Index in the answer of the first token that differs."""
    plain_token: int | None
    mode_token: int | None
    margin: float | None = None
    """By how many logits plain's token beat the other one at temperature 0; negative: it did not. For sampled answers
    each token's noise, times the temperature, is added first."""
    top_margin: float | None = None
    """Between the two likeliest tokens; 0 is a tie."""
    note: str | None = None


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Every answer that differs from plain's of the same question and round, equal ones of several rounds as one.

    Answers from an empty cache only: what was cached changes how a prompt is cut into passes, and with it the rounding.
    """
    runs = [run for run in runs if not run.warm]
    plain = {(run.question_id, run.round): run for run in runs if run.mode == PLAIN and run.error is None}
    found: dict[tuple[str, str, str, int, int | None, int | None], list[int]] = {}
    for run in runs:
        base = plain.get((run.question_id, run.round))
        if run.error is not None or base is None or run.ids == base.ids:
            continue
        position = _first_difference(base.ids, run.ids)
        key = (run.question_id, run.group, run.mode, position, _at(base.ids, position), _at(run.ids, position))
        found.setdefault(key, []).append(run.round)
    return [Difference(*key[:3], tuple(rounds), *key[3:]) for key, rounds in found.items()]


def with_margins(
    found: Sequence[Difference],
    runs: Sequence[Run],
    engine: RowEngine,
    prompts: Mapping[str, Sequence[int]],
    sampling: Sampling,
) -> list[Difference]:
    """The differences with margins from re-evaluating the common text one token a pass, as plain decoding does.

    Args:
        found: what `differences` gave for `runs`.
        runs: all runs.
        engine: evaluates; its sessions are used one at a time.
        prompts: prompt tokens by question_id.
        sampling: how the answers were drawn.
    """
    cold = [run for run in runs if run.mode == PLAIN and run.error is None and not run.warm]
    texts = {(run.question_id, run.round): run.ids for run in cold}
    known: dict[tuple[str, tuple[int, ...]], Row] = {}
    done: list[Difference] = []
    for item in found:
        prompt = prompts[item.question_id]
        prefix = texts[item.question_id, item.rounds[0]][: item.position]
        try:
            if (item.question_id, prefix) not in known:
                known[item.question_id, prefix] = row_after(engine, prompt, prefix)
        except EdgespecError as error:
            done.append(_noted(item, None, None, f"not re-evaluated: {error}"))
            continue
        done.append(_measured(item, known[item.question_id, prefix], len(prompt) + item.position, sampling))
    return done


def row_after(engine: RowEngine, prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """A copy of the logits after `prompt` and `answer`, the answer fed one token a pass."""
    target = engine.target
    session = engine.session()
    try:
        session.load(prompt)
        while session.n_pending > target.n_batch:
            plan = session.plan(n_chunk=target.n_batch)
            target.eval([plan])
            session.commit(plan)
        plan = session.plan()
        rows = target.eval([plan])[0]
        for token in answer:
            session.commit(plan, [token])
            plan = session.plan()
            rows = target.eval([plan])[0]
        row: Row = rows[0].copy()
        return row
    finally:
        engine.release(session)


def loops(runs: Sequence[Run]) -> frozenset[str]:
    """Questions to which plain's answer is repetitive in itself."""
    plain = {run.question_id: run.ids for run in runs if run.mode == PLAIN and not run.warm and run.error is None}
    shares = {question: distinct_share([ids]) for question, ids in plain.items()}
    return frozenset(question for question, share in shares.items() if share is not None and share < REPETITIVE)


def distinct_share(answers: Sequence[Sequence[int]], n: int = GRAM) -> float | None:
    """Distinct n-grams over all n-grams, counted within each answer; None where no answer has one."""
    n_all = n_distinct = 0
    for ids in answers:
        grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
        n_all += len(grams)
        n_distinct += len(set(grams))
    return n_distinct / n_all if n_all else None


def _measured(item: Difference, row: Row, position: int, sampling: Sampling) -> Difference:
    second, first = (float(x) for x in np.partition(row, len(row) - 2)[-2:])
    top_margin = first - second
    if item.plain_token is None or item.mode_token is None:
        return _noted(item, None, top_margin, "one of the texts ended here")
    pair = np.array([item.plain_token, item.mode_token])
    scores = row[pair].astype(np.float64)
    if sampling.temperature > 0:
        scores += sampling.temperature * gumbel(sampling.seed, sampling.attempt, position, pair)
    margin = float(scores[0] - scores[1])
    note = None
    if margin < 0:
        note = "plain's token is not the better one in the re-evaluation: plain decoding itself is not repeatable here"
    return _noted(item, margin, top_margin, note)


def _noted(item: Difference, margin: float | None, top_margin: float | None, note: str | None) -> Difference:
    return Difference(
        item.question_id, item.group, item.mode, item.rounds, item.position, item.plain_token, item.mode_token,
        margin, top_margin, note,
    )  # fmt: skip


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):  # texts may end at different places
        if x != y:
            return index
    return min(len(a), len(b))


def _at(ids: Sequence[int], index: int) -> int | None:
    return ids[index] if index < len(ids) else None
