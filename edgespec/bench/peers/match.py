"""Asks every arm every question, in turns that rotate, one process at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from edgespec.bench.marks import MANY_BUSY
from edgespec.bench.modes import orders
from edgespec.bench.peers.arms import Arm, by_process
from edgespec.bench.peers.process import PeerError, Revived, Worker
from edgespec.bench.runner import Run
from edgespec.bench.workloads import Question
from edgespec.device.load import LoadReader
from edgespec.device.sysfs import Sysfs
from edgespec.errors import EdgespecError

_WARM_UP_TOKENS = 16


class Seat(Protocol):
    """Where arms of one process are asked; see `process.Revived`."""

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Send a request and wait for its reply."""
        ...

    def cpu_s(self) -> float | None:
        """Processor time so far in seconds."""
        ...


@dataclass(slots=True)
class Match:
    """All that came of it so far. Texts by question, round and arm."""

    runs: list[Run] = field(default_factory=list)
    texts: dict[tuple[str, int, str], str] = field(default_factory=dict)
    idle_cpu_s: float | None = 0.0
    """Processor time that workers used while others were asked; None where the system does not tell."""
    asked_s: float = 0.0
    load: LoadReader = field(default_factory=lambda: LoadReader(Sysfs()))
    """Tells of other programs."""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Contest:
    """What to run."""

    questions: Sequence[Question]
    arms: Sequence[Arm]
    rounds: int = 1
    max_tokens: int = 128


def seats(
    arms: Sequence[Arm], server_python: Path | None, settings: Mapping[str, object], timeout_s: float = 600.0
) -> dict[str, Revived]:
    """A worker for each process that the arms need, by the arms' names; none is started yet."""
    found: dict[str, Revived] = {}
    for group in by_process(arms):

        def start(arm: Arm = group[0]) -> Worker:
            return Worker(arm.command(server_python), {**settings, **arm.settings}, timeout_s)

        revived = Revived(start)
        found |= {arm.name: revived for arm in group}
    return found


def play(
    contest: Contest,
    seated: Mapping[str, Seat],
    prompts: Mapping[str, Sequence[int]],
    match: Match,
    progress: Callable[[int, int, Run], None] = lambda _done, _all, _run: None,
) -> Match:
    """Run it all into `match`; Ctrl-C leaves early and marks it as partial.

    Args:
        contest: what to run.
        seated: where each arm is asked, by its name.
        prompts: prompt tokens by question_id, the same for all.
        match: filled as the runs end.
        progress: called with (runs done, runs in all, the last run).
    """
    arms, sequence = contest.arms, orders(len(contest.arms))
    n_all = contest.rounds * len(contest.questions) * len(arms)
    first = contest.questions[0]
    try:
        for arm in arms:
            _ask(arm, seated, first, prompts[first.question_id], _WARM_UP_TOKENS, Run("", "", 0, arm.name, 0), Match())
        for number in range(contest.rounds):
            for index, question in enumerate(contest.questions):
                n = min(contest.max_tokens, question.max_tokens or contest.max_tokens)
                for place, chosen in enumerate(sequence[(index * contest.rounds + number) % len(sequence)]):
                    blank = Run(question.question_id, question.group, number, arms[chosen].name, place)
                    run = _ask(arms[chosen], seated, question, prompts[question.question_id], n, blank, match)
                    match.runs.append(run)
                    progress(len(match.runs), n_all, run)
    except KeyboardInterrupt:
        match.partial = True
    return match


def _ask(
    arm: Arm, seated: Mapping[str, Seat], question: Question, prompt: Sequence[int], n: int, blank: Run, match: Match
) -> Run:
    """One answer; a failure is the run's."""
    seat = seated[arm.name]
    others = list({id(other): other for other in seated.values() if other is not seat}.values())
    before, own_s, began_s = _cpu_s(others), seat.cpu_s(), time.perf_counter()
    match.load.read(began_s)
    request = {"question": question.text, "prompt": list(prompt), "max_tokens": n, **arm.request}
    try:
        reply = seat.ask(request)
        run = _as_run(blank, reply)
    except EdgespecError as error:
        run = Run(blank.question_id, blank.group, blank.round, blank.mode, blank.place, error=str(error))
    else:
        match.texts[run.question_id, run.round, run.mode] = str(reply["text"])
    ended_s = time.perf_counter()
    after = _cpu_s(others)
    known = match.idle_cpu_s is not None and before is not None and after is not None
    match.idle_cpu_s = (match.idle_cpu_s or 0.0) + (after or 0.0) - (before or 0.0) if known else None
    match.asked_s += ended_s - began_s
    busy, used_s = match.load.read(ended_s).busy_others, seat.cpu_s()
    if busy is not None and own_s is not None and used_s is not None:
        taken = busy - (used_s - own_s) / (ended_s - began_s)
        if taken > MANY_BUSY:
            run = replace(run, mark=f"other programs or the host took {taken:.2f} cores")
    return run


def _as_run(blank: Run, reply: Mapping[str, Any]) -> Run:
    try:
        first_s, decode_s = float(reply["ttft_s"]), float(reply["decode_s"])
        return Run(
            blank.question_id, blank.group, blank.round, blank.mode, blank.place,
            tokens=int(reply["tokens"]), decoded=int(reply["decoded"]), decode_s=decode_s, ttft_s=first_s,
            total_s=first_s + decode_s, drafted=int(reply["drafted"]), accepted=int(reply["accepted"]),
            finish_reason=reply.get("finish"),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"a reply that says too little: {type(error).__name__}: {error}") from error


def _cpu_s(seats: Sequence[Seat]) -> float | None:
    known = [used for seat in seats if (used := seat.cpu_s()) is not None]
    return sum(known) if known or not seats else None
