"""Runs every question in every mode, interleaved and rotated, and records what each run took.

All modes of a question and a round run back to back, each from an empty KV cache and with a drafter that never saw the
answer, in an order that changes from pair to pair. Times are taken from outside, at the iterator a user's program would
read. A run that fails is recorded as failed. What is learned across answers stays: how often guesses of a kind are
right, and what passes cost.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from edgespec.bench.marks import UNSEEN, Beside, Sensors, Watch
from edgespec.bench.modes import PLAIN, Mode, orders
from edgespec.bench.oracle import OracleDrafter
from edgespec.bench.workloads import Question
from edgespec.core.session import Session
from edgespec.core.trace import RoundTrace
from edgespec.interfaces import Chunk, Drafter, Limits, Message, Result, Sampling

_WARM_UP_TOKENS = 32
_WARM_UP = "(warm-up)"


class AnswerStream(Protocol):
    """An answer in the making."""

    def record(self) -> list[RoundTrace]:
        """A list that takes up each round of decoding from now on."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        """Pieces as they come."""
        ...

    @property
    def result(self) -> Result:
        """The finished answer."""
        ...


class BenchEngine(Protocol):
    """What the runner needs of an engine."""

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        """Tokens of a prompt."""
        ...

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        ...

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
        session: Session | None = None,
    ) -> AnswerStream:
        """Begin an answer; None: in a fresh session."""
        ...

    def session(self) -> Session:
        """A new, empty sequence."""
        ...

    def release(self, session: Session) -> None:
        """Forget a sequence and the drafters that served it."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    questions: Sequence[Question]
    modes: Sequence[Mode]
    sampling: Sampling
    rounds: int = 1
    max_tokens: int = 128
    max_draft: int = 15
    system: str | None = None
    ignore_eog: bool = False
    """Whether every answer goes on to its longest length."""
    warm: bool = False
    """Whether each run is followed by one of the same question in the same session."""

    @property
    def traced(self) -> bool:
        """Whether rounds are kept: for the ceiling, where one is measured."""
        return any(mode.knows_the_text for mode in self.modes)

    def limits(self, question: Question, mode: Mode) -> Limits:
        """Limits of one run."""
        longest = min(self.max_tokens, question.max_tokens or self.max_tokens)
        fixed = mode.fixed_draft
        return Limits(
            max_tokens=longest,
            max_draft=0 if mode.drafter == "none" else fixed or self.max_draft,
            fixed_draft=fixed,
            ignore_eog=self.ignore_eog,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One answer in one mode. Times in seconds; a failed run has `error` and no numbers."""

    question_id: str
    group: str
    round: int
    mode: str
    place: int
    """Its place among the modes of its pair, 0 first."""
    error: str | None = None
    tokens: int = 0
    decoded: int = 0
    """Tokens after the first piece: those that `decode_s` was spent on."""
    decode_s: float = 0.0
    """From the first piece to the last."""
    ttft_s: float | None = None
    """From the request to the first piece."""
    total_s: float = 0.0
    """From the request until the stream ended."""
    prefill_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    accepted_by_position: tuple[int, ...] = ()
    widths: Mapping[int, int] = field(default_factory=dict)
    saved_s: float | None = None
    drafter: str = "none"
    off_reason: str | None = None
    finish_reason: str | None = None
    ids: tuple[int, ...] = ()
    warm: bool = False
    """Whether the session had answered the question before: its prompt was in the KV cache."""
    cached: int = 0
    """Tokens of the prompt that were."""
    at_s: float | None = None
    """When it began, on the runner's clock."""
    verify_s: float = 0.0
    """In passes of the model over drafts and single tokens; the rest of `decode_s` is Python's."""
    draft_s: float = 0.0
    rss_bytes: int | None = None
    """Resident memory of the process when it ended."""
    beside: Beside = UNSEEN
    mark: str | None = None
    """Why it gives no ratio: the machine was in another state than beside its pair's plain run."""

    @property
    def energy_j(self) -> float | None:
        """Joules of the whole run, by the mean of the meter's readings."""
        return None if self.beside.power_w is None else self.beside.power_w * self.total_s


@dataclass(slots=True)
class Record:
    """All runs so far, and whether the plan was left early."""

    runs: list[Run] = field(default_factory=list)
    partial: bool = False
    rounds: dict[tuple[str, int, str], tuple[RoundTrace, ...]] = field(default_factory=dict)
    """By question, round and mode, where a ceiling is measured: the rounds of the cold runs."""


def run_all(
    plan: Plan,
    engine: Callable[[], BenchEngine],
    record: Record,
    progress: Callable[[int, int, Run], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sensors: Sensors | None = None,
) -> Record:
    """Run the whole plan into `record`; Ctrl-C leaves it early and marks it as partial.

    Args:
        plan: what to run.
        engine: gives the engine of the next run; called before each, outside the measured time.
        record: filled as the runs end.
        progress: called with (runs done, runs in all, the last run).
        clock: seconds, monotonic.
        sensors: read before and after each run, and now and then meanwhile; on the same clock.
    """
    sequence = orders(len(plan.modes))
    n_all = plan.rounds * len(plan.questions) * len(plan.modes) * (2 if plan.warm else 1)
    asker = _Asker(plan, engine, record, clock, sensors)
    try:
        asker.warm_up()
        for number in range(plan.rounds):
            for index, question in enumerate(plan.questions):
                order = sequence[(index * plan.rounds + number) % len(sequence)]
                modes = [plan.modes[arm] for arm in order]
                asker.learn_text(question, modes)
                for place, mode in enumerate(modes):
                    for run in asker.ask(question, number, place, mode):
                        record.runs.append(run)
                        if progress is not None:
                            progress(len(record.runs), n_all, run)
    except KeyboardInterrupt:
        record.partial = True
    return record


def run_one(
    plan: Plan,
    engine: BenchEngine,
    question: Question,
    number: int,
    place: int,
    mode: Mode,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Ask one question in one mode, from an empty cache."""
    return _Asker(replace(plan, warm=False), lambda: engine, Record(), clock).ask(question, number, place, mode)[0]


def prompt_of(engine: BenchEngine, question: Question, system: str | None = None) -> list[int]:
    """The question as tokens: after what was said before it or, as a conversation's first turn, after `system`."""
    head = question.before or ((Message("system", system),) if system else ())
    return engine.prompt(engine.render([*head, Message("user", question.text)]))


class _Asker:
    """Asks questions; knows what plain decoding answered."""

    def __init__(
        self,
        plan: Plan,
        engine: Callable[[], BenchEngine],
        record: Record,
        clock: Callable[[], float],
        sensors: Sensors | None = None,
    ) -> None:
        self._plan, self._engine, self._record = plan, engine, record
        self._clock, self._sensors = clock, sensors
        self._texts: dict[str, tuple[int, ...]] = {}

    def warm_up(self) -> None:
        """One short answer in every mode, so that none pays for pages, teams and imports. Failures show later."""
        question = replace(self._plan.questions[0], question_id=_WARM_UP, max_tokens=_WARM_UP_TOKENS)
        self.learn_text(question, self._plan.modes)
        for place, mode in enumerate(self._plan.modes):
            self.ask(question, 0, place, mode)
        self._record.rounds.clear()

    def learn_text(self, question: Question, modes: Sequence[Mode]) -> None:
        """Let plain decoding write the answer, unrecorded, where a mode needs it before plain's turn comes."""
        first = next((mode for mode in modes if mode.knows_the_text or mode.name == PLAIN), None)
        if first is not None and first.knows_the_text and question.question_id not in self._texts:
            self.ask(question, 0, 0, Mode(PLAIN, "none"))

    def ask(self, question: Question, number: int, place: int, mode: Mode) -> list[Run]:
        """The run from an empty cache and, where the plan wants it, the same again in the same session."""
        run = Run(question.question_id, question.group, number, mode.name, place)
        todo = [run, replace(run, warm=True)] if self._plan.warm else [run]
        done: list[Run] = []
        try:
            engine = self._engine()
            prompt = prompt_of(engine, question, self._plan.system)
            drafter = self._drafter(mode, prompt, question)
            session = engine.session() if self._plan.warm else None
            try:
                for blank in todo:
                    with no_gc():
                        done.append(
                            self._timed(blank, engine, prompt, self._plan.limits(question, mode), drafter, session)
                        )
            finally:
                if session is not None:
                    engine.release(session)
        except Exception as error:  # whatever it is, it belongs into the record and must not end the other runs
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            done += [replace(blank, error=text) for blank in todo[len(done) :]]
        if mode.name == PLAIN and done[0].error is None:
            self._texts.setdefault(question.question_id, done[0].ids)
        return done

    def _drafter(self, mode: Mode, prompt: Sequence[int], question: Question) -> str | Drafter:
        """A new one for every run, so that it knows nothing of this question's answer."""
        if mode.make is not None:
            return mode.make()
        if not mode.knows_the_text:
            return mode.drafter
        text = self._texts.get(question.question_id)
        if text is None:
            raise RuntimeError("plain decoding wrote no answer that could be known")
        return OracleDrafter(prompt, text)

    def _timed(
        self,
        blank: Run,
        engine: BenchEngine,
        prompt: Sequence[int],
        limits: Limits,
        drafter: str | Drafter,
        session: Session | None,
    ) -> Run:
        clock, rounds = self._clock, None
        first_s = last_s = None
        n_first = n_tokens = 0
        watch = Watch(self._sensors, clock)
        began_s = clock()
        stream = engine.stream(prompt, self._plan.sampling, limits, drafter=drafter, session=session)
        if self._plan.traced:
            rounds = stream.record()
        for chunk in stream:
            if not chunk.tokens:
                continue
            last_s = clock()
            n_tokens += len(chunk.tokens)
            if first_s is None:
                first_s, n_first = last_s, n_tokens
            watch.look(last_s)
        ended_s = clock()
        beside = watch.end()
        result = stream.result
        if len(result.tokens) != n_tokens:
            raise RuntimeError(f"the stream gave {n_tokens} tokens, the result has {len(result.tokens)}")
        if rounds is not None and not blank.warm:
            self._record.rounds[blank.question_id, blank.round, blank.mode] = tuple(rounds)
        report = result.report
        return replace(
            blank,
            tokens=n_tokens,
            decoded=n_tokens - n_first,
            decode_s=last_s - first_s if first_s is not None and last_s is not None else 0.0,
            ttft_s=first_s - began_s if first_s is not None else None,
            total_s=ended_s - began_s,
            prefill_s=report.prefill_s,
            drafted=report.drafted,
            accepted=report.accepted,
            rounds=report.rounds,
            accepted_by_position=report.accepted_by_position,
            widths=dict(report.widths),
            saved_s=report.saved_s,
            drafter=report.drafter,
            off_reason=report.drafter_off_reason if drafter != "none" else None,
            finish_reason=result.finish_reason,
            ids=result.tokens,
            cached=result.usage.cached_tokens,
            at_s=began_s,
            verify_s=report.verify_s,
            draft_s=report.draft_s,
            rss_bytes=report.rss_bytes,
            beside=beside,
        )


@contextmanager
def no_gc() -> Iterator[None]:
    """Collect before, not during: where a collection falls is nobody's speed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
