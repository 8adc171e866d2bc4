"""The one thread that has answers made, and the queue in front of it: the server's, and that of `edgespec.calls`.

Answers take turns, as many at a time as the engine was opened with sessions; those share their passes
(`edgespec.answer.play_together`). A session stays with its place, so that the next request of a conversation finds its
beginning in the KV cache.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from edgespec.answer import Stream, play_together
from edgespec.errors import BusyError, ConfigError, ContextFullError, EdgespecError, EvalCancelled
from edgespec.interfaces import Chunk, Drafter, Limits, Report, Result, Sampling

if TYPE_CHECKING:
    from edgespec.constraint import Constraint
    from edgespec.core.session import Session
    from edgespec.engine import Engine

Event = Literal["started"] | Chunk | Result | Exception
"""What becomes of a job: it starts, pieces come, and it ends with a result or an error."""
_MAX_RETRY_S = 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """One answer to make: what `Engine.stream` takes."""

    prompt: Sequence[int]
    sampling: Sampling
    limits: Limits
    drafter: str | Drafter | None = None
    constraint: Constraint | None = None
    session: Session | None = None
    """None: that of the place, where the beginning of the prompt may be in the cache."""
    learn: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """An answer on its way. `tell` is called on the engine's thread and must not block."""

    wanted: Wanted
    tell: Callable[[Event], None]
    cancelled: bool = False
    stream: Stream | None = None
    place: _Place | None = None
    began_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Place:
    """A place in the KV cache, and what is in it."""

    session: Session | None = None
    used: int = 0


@dataclass(slots=True)
class Tally:
    """What all answers since the start add up to. Seconds, tokens, counts."""

    n_answers: dict[str, int] = field(default_factory=dict)
    """By how they ended."""
    n_refused: int = 0
    """Turned away because the queue was full."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_s: float = 0.0
    predicted_tokens: int = 0
    predicted_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)
    draft_s: float = 0.0
    verify_s: float = 0.0
    saved_s: float = 0.0
    """By the ledger; negative where drafting lost."""
    team_changes: int = 0
    last: Report | None = None
    """Of the last answer; nothing of what was said is kept."""

    def add(self, result: Result) -> None:
        """Count an answer."""
        report, usage = result.report, result.usage
        self.n_answers[result.finish_reason] = self.n_answers.get(result.finish_reason, 0) + 1
        self.prompt_tokens += usage.prompt_tokens - usage.cached_tokens
        self.cached_tokens += usage.cached_tokens
        self.prompt_s += report.prefill_s
        self.predicted_tokens += usage.completion_tokens
        self.predicted_s += report.decode_s
        self.rounds += report.rounds
        self.drafted += report.drafted
        self.accepted += report.accepted
        self.draft_s += report.draft_s
        self.verify_s += report.verify_s
        self.saved_s += report.saved_s or 0.0
        self.team_changes += len(report.team_changes)
        n_more = len(report.accepted_by_position) - len(self.accepted_by_position)
        self.accepted_by_position += [0] * n_more
        for position, n in enumerate(report.accepted_by_position):
            self.accepted_by_position[position] += n
        for width, n in report.widths.items():
            self.widths[width] = self.widths.get(width, 0) + n
        self.last = report


class Service:
    """Makes answers one after the other, or `n_places` at a time, on a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        *,
        n_places: int = 1,
        n_queue: int | None = 16,
        closed: Callable[[], EdgespecError] = lambda: BusyError("the server is shutting down", _MAX_RETRY_S),
    ) -> None:
        """`engine` was opened with `n_places` sessions.

        `n_queue` answers may wait for a place (None: any number). `closed` is what is told once no more are taken.
        """
        self.engine = engine
        self.n_places, self.n_queue, self._closed = n_places, n_queue, closed
        self.tally = Tally()
        self.draining = False
        self._closing = False
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._playing: list[Job] = []
        self._free = [_Place() for _ in range(n_places)]
        self._n_used = 0
        self._last_s = 1.0
        self._thread = threading.Thread(target=self._work, name="edgespec-answer", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Answers that wait for a place."""
        return len(self._waiting)

    @property
    def n_playing(self) -> int:
        """Answers in the making."""
        return len(self._playing)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the answers of one request, all or none.

        Raises:
            EdgespecError: no more are taken; a BusyError where the queue is full.
        """
        with self._changed:
            self.check(len(jobs))
            self._waiting.extend(jobs)
            self._changed.notify()

    def check(self, n_jobs: int = 1) -> None:
        """Whether there is room for so many answers.

        Raises:
            EdgespecError: as `submit`.
        """
        if self.draining:
            raise self._closed()
        if self.n_queue is None:
            return
        n_room = self.n_queue + self.n_places - len(self._playing) - len(self._waiting)
        if n_jobs > n_room:
            self.tally.n_refused += 1
            retry_s = min(_MAX_RETRY_S, max(1, round(self._last_s)))
            raise BusyError(f"the queue is full ({len(self._waiting)} answers wait): try again", retry_s)

    def cancel(self, job: Job) -> None:
        """End a job as soon as possible, also in the middle of its prompt; one that waits is told EvalCancelled."""
        with self._changed:
            job.cancelled = True
            waits = job in self._waiting
            if waits:
                self._waiting.remove(job)
        if waits:
            job.tell(EvalCancelled("the answer was cancelled before it began"))
        if job.stream is not None:
            job.stream.cancel()

    def cancel_all(self) -> None:
        """End all jobs, as `cancel` does."""
        with self._changed:
            jobs = [*self._playing, *self._waiting]
        for job in jobs:
            self.cancel(job)

    def drain(self) -> None:
        """Take nothing more, send away what waits, and finish what is being made."""
        with self._changed:
            self.draining = True
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.tell(self._closed())

    def close(self) -> None:
        """End everything at once. May be called twice; the engine stays open."""
        self.drain()
        with self._changed:
            self._closing = True
            self._changed.notify()
        for job in list(self._playing):
            self.cancel(job)
        self._thread.join()

    # --- on the engine's thread ---

    def _work(self) -> None:
        try:
            self._serve()
        finally:  # whatever ended it, nobody is left waiting
            self.drain()
            for job in self._playing:
                job.tell(self._closed())
        for place in self._free:
            self._empty(place)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting or self._playing)
                if self._closing and not self._playing:
                    break
                n_free = self.n_places - len(self._playing)
                fresh = [self._waiting.popleft() for _ in range(min(n_free, len(self._waiting)))]
                self._playing += fresh
            for job in fresh:
                self._begin(job)
            if self._playing:
                self._play()

    def _begin(self, job: Job) -> None:
        wanted, job.began_s = job.wanted, time.perf_counter()
        job.place = place = self._place_for(wanted.prompt)
        try:
            session = wanted.session
            if session is None:
                session = place.session = place.session or self.engine.session()
            job.stream = self.engine.stream(
                wanted.prompt, wanted.sampling, wanted.limits,
                drafter=wanted.drafter, session=session, constraint=wanted.constraint,
                learn=wanted.learn,
            )  # fmt: skip
        except Exception as error:  # whatever it is, it ends this answer only
            if not isinstance(error, ConfigError | ContextFullError):
                self._empty(place)
            self._leave(job, error)
            return
        if job.cancelled:
            job.stream.cancel()
        job.tell("started")

    def _play(self) -> None:
        streams = {job: job.stream for job in self._playing if job.stream is not None}
        try:
            chunks = play_together(list(streams.values()))
        except Exception as error:  # as above
            self._fail(streams, error)
            return
        for (job, stream), chunk in zip(streams.items(), chunks, strict=True):
            if chunk is None:
                self._leave(job, stream.result)
            elif chunk.text or chunk.tokens:
                job.tell(chunk)

    def _fail(self, streams: dict[Job, Stream], error: Exception) -> None:
        """End all: a pass that failed may have taken pieces of the others with it.

        Which of several the error is about is not known; alone, it is this one's.
        """
        if len(streams) > 1:
            why = str(error) if isinstance(error, EdgespecError) else f"internal error ({type(error).__name__})"
            error = BusyError(f"an answer that was made beside this one failed ({why}): ask again")
        for job, stream in streams.items():
            stream.close()
            self.tally.add(stream.result)
            if job.place is not None:
                self._empty(job.place)  # what is in the cache by now is not known
            self._leave(job, error)

    def _leave(self, job: Job, end: Result | Exception) -> None:
        if isinstance(end, Result):
            self.tally.add(end)
        if job.place is not None:
            self._n_used += 1
            job.place.used = self._n_used
            self._free.append(job.place)
        with self._changed:
            self._playing.remove(job)
        self._last_s = time.perf_counter() - job.began_s
        job.tell(end)

    def _empty(self, place: _Place) -> None:
        session, place.session = place.session, None
        if session is not None:
            self.engine.release(session)

    def _place_for(self, prompt: Sequence[int]) -> _Place:
        """The free place whose cached text begins most like the prompt; of equals, the one unused for longest."""
        best = max(self._free, key=lambda place: (_n_shared(place, prompt), -place.used))
        self._free.remove(best)
        return best


def _n_shared(place: _Place, prompt: Sequence[int]) -> int:
    """Tokens at the beginning of the prompt that are in the cache."""
    if place.session is None:
        return 0
    cached = place.session.tokens[: place.session.n_kv]
    n = min(len(cached), len(prompt))
    return next((i for i in range(n) if cached[i] != prompt[i]), n)
