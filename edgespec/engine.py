"""The composition root: the only place where target, drafters, device and stored state meet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from edgespec import kernels, paths, state
from edgespec.answer import Stream
from edgespec.calls import Calls, closed_error
from edgespec.config import EngineConfig
from edgespec.core.acceptance import Acceptance
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.session import Session
from edgespec.device import host
from edgespec.draft import AUTO
from edgespec.draft.forced import ForcedDrafter
from edgespec.drafters import Drafters
from edgespec.errors import EvalError, ModelError
from edgespec.interfaces import Chunk, Drafter, Limits, Message, Report, Result, Sampling
from edgespec.machine import Machine
from edgespec.opening import Opened, open_model
from edgespec.options import Options, Prompt
from edgespec.request import breakers, check_drafter, check_limits, check_prompt, check_sampling

_SAVE_EVERY_S = 30.0
_MAX_CALIBRATIONS = 3
"""In one process: a machine that is always busy is not measured for ever."""


class Engine(Calls):
    """A loaded model with everything that makes it fast. A context manager; threads may share it and take turns."""

    def __init__(self, opened: Opened) -> None:
        """Use `Engine.open`."""
        super().__init__(opened.target.options.n_seq_max)
        self.config = config = opened.config
        self.exactness = opened.decision
        self.tuned = opened.tuned
        self.target = opened.target
        self.n_ctx = opened.target.n_ctx
        self.model_name = opened.path.stem
        self.model_path = opened.path
        self.fingerprint = opened.fingerprint
        self.template_name = opened.template.name
        self._template = opened.template
        self._sysfs = opened.sysfs
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._seats: list[Session | None] = [None] * opened.target.options.n_seq_max
        self._answering: dict[Session, Generation] = {}
        self._learning: set[Generation] = set()
        self._closed = False
        self._n_calibrations = 0
        self._state_file = state.state_file(
            paths.cache_dir() / "state", opened.fingerprint, opened.machine, str(config.kv_type),
            str(opened.target.n_threads), str(opened.target.n_threads_batch), opened.build,
        )  # fmt: skip  # what changes the cost of a pass
        recipe = self.exactness.recipe
        one_thread = recipe is not None and recipe.one_thread
        self.machine = Machine(
            opened.target, opened.sysfs, config, opened.topology, one_thread=one_thread, tuned=opened.tuned
        )
        self._drafters = Drafters(opened.target, self.machine)
        self._drafters.prepare(config.drafter, self.tuned.drafter or AUTO)
        table, self._prior, note = state.load_state(self._state_file)
        self._cost: CostModel | None = None
        if table is not None:
            cost = CostModel(table)
            self._cost = cost if self.machine.begin(cost) else None
        self._notes = (*opened.notes, *([note] if note else []))
        self._saved_at_s = time.perf_counter()
        # Measuring empties the cache, which may not happen in the middle of an exact conversation.
        self._cost_model(drafting=config.drafter != "none" or recipe is not None)
        self.load_s = time.perf_counter() - opened.began_s

    @classmethod
    def open(
        cls,
        model: str | Path | None = None,
        config: EngineConfig | None = None,
        *,
        progress: Callable[[int, int | None], None] | None = None,
        n_sessions: int = 1,
    ) -> Self:
        """Find (or fetch) a model, check it, load it, and measure what its passes cost.

        Args:
            model: a path, a catalogue name, or `hf:owner/repo/file.gguf`; None: the configured one.
            config: options; None: the defaults.
            progress: called with (bytes done, bytes in all) while a model is fetched.
            n_sessions: sequences whose KV caches are kept side by side.

        Raises:
            ConfigError: an option has no such value.
            ModelError: the model cannot be found, fetched, read, or does not fit the memory.
            DeviceError: llama.cpp does not load here.
        """
        config = config or EngineConfig()
        check_drafter(config.drafter)
        return cls(open_model(str(model or config.model), config, n_sessions, progress))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without a start token; `special` parses control tokens written in it."""
        return self.target.encode(text, special=special)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The bytes a reader would see of `tokens`."""
        return b"".join(map(self.target.piece, tokens))

    def prompt(self, text: str, *, raw: bool = False) -> list[int]:
        """Tokens of a prompt, with the model's start token exactly once where it wants one.

        Control tokens written in the text are parsed, so that a rendered template works; `raw` keeps them plain text.
        """
        return self.target.encode(text, special=not raw, bos=True)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as the text this model was trained on."""
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def session(self) -> Session:
        """A new, empty sequence. Only the most recently used ones keep their KV cache; the others evaluate anew."""
        self._check_process()
        with self._lock:
            self._check_open()
            session = Session(self.target, n_ctx=self.n_ctx // len(self._seats))
            self._seat(session)
            return session

    def release(self, session: Session) -> None:
        """Forget a session: its cache, its drafters, what it learned."""
        self._check_process()
        with self._lock:
            if session in self._seats:
                session.forget()
                self._seats[self._seats.index(session)] = None
            self._drafters.release(session)

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Begin an answer; iterate over the result for its pieces. One that is left before its end should be closed.

        Args:
            prompt: a text, token ids, or messages.
            sampling: how tokens are drawn; None: as configured.
            limits: when to end; None: as configured.
            options: by name, before those of `sampling` and `limits`. Without `session` a fresh one is made, and
                forgotten afterwards. What a constraint leaves no choice about is drafted too with the drafter "auto".

        Raises:
            ConfigError: an option has no such value, or llama.cpp refuses the grammar.
            ContextFullError: the prompt does not fit.
            ModelError: the engine is closed, or this process was forked after it was opened.
        """
        asked = self._wanted(prompt, options, sampling, limits)
        ids, sampling, limits, drafter, session = (
            asked.prompt, asked.sampling, asked.limits, asked.drafter, asked.session,
        )  # fmt: skip
        check_sampling(sampling, self.target.n_vocab)
        if sampling.dry_multiplier and sampling.dry_breakers is None:
            sampling = replace(sampling, dry_breakers=self._breakers)
        check_limits(limits)
        check_prompt(ids, self.target.n_vocab)
        with self._lock:
            self._check_open()
            owned = session is None
            session = session or self.session()
            self._seat(session)
            try:
                drafting, others, controller = self._drafting(session, drafter, sampling, limits)
                before = self._answering.get(session)
                if before is not None:
                    before.cancel()  # a session tells one text: a new answer ends the one before
                guide = self.target.guide(asked.constraint.grammar) if asked.constraint is not None else None
                forced = None
                if guide is not None and drafting is not None and (drafter or self.config.drafter) == "auto":
                    forced = Drafting(ForcedDrafter(guide, self.target.piece), self.target.n_vocab)
                generation = Generation(
                    session, ids, sampling, limits, self.target.piece, time.perf_counter, drafting, controller,
                    guide, forced, others,
                )  # fmt: skip
            except BaseException:
                if owned:
                    self.release(session)
                raise
            self._answering[session] = generation
            if asked.learn:
                self._learning.add(generation)
            stream = Stream(self, generation, owned)
            with self._making:
                self._running.add(stream)
            return stream

    @cached_property
    def _breakers(self) -> tuple[tuple[int, ...], ...]:
        return breakers(self.target, self.target.n_vocab)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was asked for and not done, and what the user should know, one line each."""
        return (*self._notes, *self.machine.notes, *self._drafters.notes)

    def close(self) -> None:
        """Save what was learned and free the model. May be called twice. A forked child leaves all to its parent."""
        if os.getpid() != self._pid:
            return
        self._end_calls()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._save()
            self._drafters.close()
            self.machine.close()
            self.target.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _check_process(self) -> None:
        # Before the lock is taken: a thread that the child does not have may have held it when the process was forked.
        if os.getpid() != self._pid:
            raise ModelError("the process was forked after the model was loaded: load the model in the child")

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error()

    def _seat(self, session: Session) -> None:
        """Give the session a place in the KV cache, taking that of the one unused for longest."""
        if session in self._seats:
            self._seats.append(self._seats.pop(self._seats.index(session)))
            return
        free = self._seats.index(None) if None in self._seats else 0
        evicted = self._seats.pop(free)
        if evicted is not None:
            evicted.forget()
            session.seq_id = evicted.seq_id
        else:
            session.seq_id = min(set(range(len(self._seats) + 1)) - {s.seq_id for s in self._seats if s})
        self.target.clear(session.seq_id)
        session.n_kv = 0
        self._seats.append(session)

    def _drafting(
        self, session: Session, drafter: str | Drafter | None, sampling: Sampling, limits: Limits
    ) -> tuple[Drafting | None, Sequence[Drafting], Controller | None]:
        wanted = drafter if drafter is not None else self.config.drafter
        usual = self.tuned.drafter or AUTO
        if isinstance(wanted, str):
            check_drafter(wanted)
        if (usual if wanted == "auto" else wanted) == "none" or limits.max_draft == 0:
            return None, (), None
        drafting, others = self._drafters.serve(session, wanted, usual)
        if limits.fixed_draft is not None:
            return drafting, others, None
        cost, tools = self._cost_model(drafting=True), self._drafters.tools(session)
        if sampling.temperature not in tools.controllers:
            acceptance = Acceptance(self._prior, sampling.temperature)
            tools.controllers[sampling.temperature] = Controller(cost, acceptance)
        tools.controllers[sampling.temperature].cost = cost
        return drafting, others, tools.controllers[sampling.temperature]

    def _cost_model(self, *, drafting: bool) -> CostModel:
        """The cost table; measured where there is none, and again where it was measured on a busy machine.

        Without `drafting` single rows are enough: the governor tells by them that something is in the way.
        """
        seated = [session for session in self._seats if session is not None]
        idle = not any(session.n_kv for session in seated)
        again = self._cost is not None and self._cost.suspect and idle and self._n_calibrations < _MAX_CALIBRATIONS
        lacking = self._cost is None or (drafting and len(self._cost.widths) == 1)
        if lacking or again:
            self._n_calibrations += 1
            for session in seated:
                session.forget()
            self._cost = self.machine.calibrate(wide=drafting)
        assert self._cost is not None
        return self._cost

    def advance(self, *generations: Generation) -> list[Chunk]:
        """Play one round of these answers, in one pass where the memory allows; what `Stream` does at every step.

        Raises:
            EvalError: the target refused the batch, or was told to stop (EvalCancelled).
            ModelError: the engine is closed, or this process was forked after it was opened.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            for generation in generations:
                self._seat(generation.session)
            try:
                return self.machine.round(generations)
            except EvalError:
                if not self.target.capabilities.rewind:
                    # A recurrent state cannot take back half a pass: it is lost, and evaluated anew.
                    for generation in generations:
                        generation.session.forget()
                raise

    def finish(self, generation: Generation, owned: bool) -> Result:
        """The account of an answer that ended; a session that was made for it is given up."""
        self._check_process()
        with self._lock:
            result = generation.result()
            self._answering.pop(generation.session, None)
            learns = generation in self._learning
            self._learning.discard(generation)
            if self._closed:
                return result
            report = self._complete(result.report, generation)
            if learns and result.finish_reason != "cancelled":
                self._drafters.learn(generation.session)
            if owned:
                self.release(generation.session)
            if time.perf_counter() - self._saved_at_s > _SAVE_EVERY_S:
                self._save()
        return replace(result, report=report)

    def _complete(self, report: Report, generation: Generation) -> Report:
        """Add what only the engine knows."""
        cpus = self.machine.target_cpus()
        pin = self._drafters.pin(generation.session)
        cpus_drafter = cpus if pin is None else pin.cpus
        recipe = self.exactness.recipe
        exact = recipe is not None and (recipe.asked or len(generation.session.tokens) <= recipe.n_ctx)
        notes = [*self.notes, *report.notes]
        if pin is not None and pin.reason is not None:
            notes.append(f"the drafter's cores: {pin.reason}")
        return replace(
            report,
            load_s=self.load_s,
            threads=self.target.n_threads,
            threads_wide=self.target.n_threads_batch,
            cpus_target=cpus,
            cpus_drafter=() if report.drafter == "none" else cpus_drafter,
            team_changes=self.machine.changes_since(generation.stats.started_s),
            policy=self.config.policy,
            tuned=str(self.tuned) if self.tuned.values() else None,
            kernels=str(kernels.status()),
            exact=exact,
            exact_why=self.exactness.why if exact or recipe is None else f"longer than certified; {self.exactness.why}",
            heat=self.machine.heat(),
            rss_bytes=host.rss_bytes(self._sysfs),
            notes=tuple(notes),
        )

    def _save(self) -> None:
        self._saved_at_s = time.perf_counter()
        if self._cost is None:
            return
        if self._cost.suspect:
            state.drop_state(self._state_file)
            return
        note = state.save_state(self._state_file, self._cost.table(), self._prior)
        if note and note not in self._notes:
            self._notes = (*self._notes, note)
