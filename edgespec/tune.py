"""Measures a model's options on this device for `edgespec tune`: threads, KV types, drafters, draft lengths, files.

Threads and KV types are told apart by passes of the model alone, which costs least; drafters, draft lengths and files
by whole greedy answers. What is searched, and what counts as faster, is in `tune_search`.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from edgespec import kernels
from edgespec.certify import KV_TYPES
from edgespec.certify_grid import thread_counts
from edgespec.config import EngineConfig, Unasked, Value
from edgespec.core.controller import chain_parents
from edgespec.device import host
from edgespec.device.load import LoadReader
from edgespec.device.monitor import Monitor
from edgespec.device.placement import placement
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology, read_topology
from edgespec.draft import AUTO, PACKAGED, REGISTRY, STORED
from edgespec.engine import Engine
from edgespec.errors import DeviceError, ModelError
from edgespec.interfaces import NO_DRAFT, Draft, Limits, Message, Plan, Sampling
from edgespec.opening import build_name, open_model
from edgespec.target import gguf_check
from edgespec.tune_search import Knob, Means, search
from edgespec.tuning_profile import Choice, Finding, Profile, same_kv

_DRAFTS = (7, 31)
"""Longest drafts to try beside the default."""
_PATTERN, _SLOW_PATTERN = (1, 1, 1, 4, 1, 1, 1, 8), (1, 1, 4)
"""Widths of the passes that are timed, in the mixture of an answer with some drafts. Source: `edgespec bench`, chat and
edits: two to three passes in four have one row."""
_SLOW_S = 0.05
"""A pass of one row that takes longer makes a device slow: it gets the short pattern and shorter answers."""
_N_TOKENS, _N_TOKENS_SLOW, _N_PROMPTS_SLOW = 48, 24, 2
_N_STEPS, _N_STEPS_PROMPT = 8, 30
"""Plain steps that the short row of passes takes about, and a prompt."""
_N_CONTEXT, _N_CONTEXT_SLOW, _N_CONTEXT_SHORT = 512, 128, 16
"""Cached tokens beneath the passes: usually, on a slow device, and where a memory does not rewind and they are
evaluated every time."""
_N_CTX = 2048
_N_OPEN = 6
"""Engines that are kept open, where the memory holds them."""
_N_CHECKED = 4
"""Rows of the pass by whose price files are compared."""
_FREE = 0.25
"""Cores' worth of time that others may take of those the threads need."""
_MOST_FILES = 3
_QUANTISATION = re.compile(r"[-._](ud-)?(iq|q|tq)[0-9][a-z0-9_]*$|[-._](f16|f32|bf16|mxfp4)$")


@dataclass(frozen=True, slots=True)
class Task:
    """What to tune."""

    path: Path
    config: EngineConfig
    """What it sets is not tuned."""
    prompts: tuple[str, ...]
    """First messages of conversations, the most telling first."""
    files: tuple[Path, ...] = ()
    """Other files of the same model."""
    budget_s: float = 240.0


def tune(task: Task, tell: Callable[[str], None] = lambda _: None, seed: int = 0) -> Profile:
    """Measure, and give the profile; nothing is saved.

    Raises:
        ModelError: the model cannot be found, read, or does not fit the memory.
        DeviceError: other programs or heat disturbed everything.
    """
    began_s = time.perf_counter()
    sysfs = Sysfs()
    info = gguf_check.check(task.path)
    for path in task.files:
        check_same(info, path)
    topology = read_topology(sysfs)
    with Rig(task, info.recurrent_bytes > 0, tell) as rig:
        knobs = list(rig.knobs(topology))
        with Watch(sysfs, topology, rig.n_threads) as watch:
            left_s = task.budget_s - (time.perf_counter() - began_s)
            choice, findings = search(knobs, Means(time.perf_counter, watch.trouble, tell, seed), left_s)
        rows, prices = kernels.status(), tuple(rig.prices(choice))
    if findings and watch.last is not None and all(finding.s_token is None for finding in findings):
        raise DeviceError(f"nothing could be measured undisturbed ({watch.last}): the profile stays as it was")
    findings = (*rig.settled, *findings, *prices)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    took_s = time.perf_counter() - began_s
    return Profile(
        info.fingerprint, build_name(), host.cpu_name(sysfs), now, took_s, choice, findings, rows.in_force
    )  # fmt: skip


def others_of(path: Path, here: Iterable[Path]) -> tuple[Path, ...]:
    """Files among `here` that are the same model in another quantisation, by their names and their shape."""
    info = gguf_check.check(path)
    found = []
    for other in here:
        if other.resolve() == path.resolve() or _plain_name(other) != _plain_name(path):
            continue
        try:
            check_same(info, other)
        except ModelError:  # the names are alike, and that is all
            continue
        found.append(other)
    return tuple(found[:_MOST_FILES])


def _plain_name(path: Path) -> str:
    """A file's name without its quantisation."""
    return _QUANTISATION.sub("", path.stem.lower())


def check_same(info: gguf_check.GGUFInfo, path: Path) -> None:
    """Refuse a file that is not of the same model.

    Raises:
        ModelError: it has another shape or vocabulary, or cannot be read.
    """
    other = gguf_check.check(path)
    shapes = [(i.arch, i.n_layer, i.n_embd, i.n_ff, i.n_head, i.n_head_kv, i.n_vocab) for i in (info, other)]
    if shapes[0] != shapes[1]:
        raise ModelError(f"{path} is not a file of the same model as {info.path.name}")


class Rig:
    """Engines on one model, opened as choices need them."""

    def __init__(self, task: Task, recurrent: bool, tell: Callable[[str], None]) -> None:
        """`recurrent`: longer drafts than the default would cost this model memory."""
        self.path = task.path
        self._task = task
        self._tell = tell
        self._engines: dict[Choice, Engine] = {}
        self._filled: dict[Choice, int] = {}
        """Tokens at the beginning of sequence 0, by engine."""
        self._warm: set[tuple[Choice, str]] = set()
        self._drafts = [n for n in _DRAFTS if not recurrent or n < task.config.max_draft]
        longest = max([task.config.max_draft, *self._drafts])
        self._tunes_drafts = isinstance(task.config.max_draft, Unasked) and task.config.max_draft > 0
        self._n_reserved = longest if self._tunes_drafts else int(task.config.max_draft)
        self._slow = False
        self.n_threads = 0
        """Of the largest team, once there are knobs."""
        self.settled: list[Finding] = []
        """What there is nothing to measure about, and why."""

    def knobs(self, topology: Topology) -> Iterator[Knob]:
        """What there is to tune; opens the model.

        Raises:
            EdgespecError: it cannot be opened.
        """
        config, engine = self._task.config, self._engine(Choice())
        cost = engine.machine.governor.cost
        step_s = 0.0 if cost is None else cost.base_s(1)
        self._slow = step_s > _SLOW_S
        self.passes(Choice())  # the context beneath the passes takes long, once
        passes_s, answers_s = _N_STEPS * step_s, self._n_prompts * (self._n_tokens + _N_STEPS_PROMPT) * step_s
        placed, team = placement(topology), engine.machine.governor.full
        self.n_threads = max(team.one, team.wide)
        most = len(topology.usable) if set(placed.target) == set(topology.usable) else len(placed.target)
        recipe = engine.exactness.recipe
        for option, usual, given in (
            ("threads", team.one, config.threads),
            ("threads_batch", team.wide, config.threads_batch or config.threads),
        ):
            if given is None and option == "threads" and recipe is not None and recipe.one_thread:
                self._settle(option, 1, f"exact here only so: {engine.exactness.why}")
                continue
            sizes = tuple(n for n in thread_counts(min(usual, most), most) if n != usual)
            yield from self._knob(option, usual, given, sizes, self.passes, 1.0, passes_s)
        usual_kv = engine.config.kv_type or KV_TYPES[0]
        kvs = tuple(kv for kv in KV_TYPES if not same_kv(kv, usual_kv))
        yield from self._knob("kv_type", usual_kv, config.kv_type, kvs, self.passes, 1.5, passes_s)
        off = engine.target.capabilities.off_reason if engine.target.capabilities.max_rollback == 0 else None
        if off is not None:
            self._settle("drafter", "none", f"nothing can be drafted: {off}")
        else:
            given_drafter = None if config.drafter == "auto" else config.drafter
            names = ("none", *(name for name in REGISTRY if name not in (AUTO, STORED, PACKAGED)))
            yield from self._knob("drafter", AUTO, given_drafter, names, self.answers, 2.0, answers_s)
            if config.drafter != "none":
                given_draft = None if self._tunes_drafts else config.max_draft
                drafts = tuple(n for n in self._drafts if n != config.max_draft)
                yield from self._knob(
                    "max_draft", int(config.max_draft), given_draft, drafts, self.answers, 2.0, answers_s
                )
        files = tuple(str(path) for path in self._task.files)
        if files:
            yield Knob("file", self._task.path.name, files, self.answers, 2.0, answers_s)

    def prices(self, choice: Choice) -> Iterator[Finding]:
        """Which of several files gains most by drafts: where checking them costs least, with the options chosen."""
        found = []
        for file in (None, *map(str, self._task.files)):
            engine = self._engines.get(replace(choice, drafter=None, max_draft=None, file=file))
            cost = None if engine is None else engine.machine.governor.cost
            if cost is not None and _N_CHECKED in cost.widths:
                found.append((cost.base_s(_N_CHECKED) / cost.base_s(1), Path(file or self._task.path).name))
        if len(found) > 1:
            (steps, best), *others = sorted(found)
            rest = ", ".join(f"{more:.1f} in {name}" for more, name in others)
            yield Finding("drafting", best, None, f"gains most there: {_N_CHECKED} rows take {steps:.1f} steps, {rest}")

    def _knob(
        self,
        option: str,
        usual: Value,
        given: Value,
        others: tuple[Value, ...],
        measure: Callable[[Choice], float],
        share: float,
        takes_s: float,
    ) -> Iterator[Knob]:
        if given is not None:
            self._settle(option, given, "you set it")
        elif not others:
            self._settle(option, usual, "there is nothing else to choose from")
        else:
            yield Knob(option, usual, others, measure, share, takes_s)

    def _settle(self, option: str, value: Value, why: str) -> None:
        self.settled.append(Finding(option, value, None, why))

    @property
    def _n_tokens(self) -> int:
        return _N_TOKENS_SLOW if self._slow else _N_TOKENS

    @property
    def _n_prompts(self) -> int:
        return min(len(self._task.prompts), _N_PROMPTS_SLOW) if self._slow else len(self._task.prompts)

    def passes(self, choice: Choice) -> float:
        """Seconds of a row in a fixed row of passes, with the threads and the KV type of this choice."""
        key = Choice(kv_type=choice.kv_type, file=choice.file)
        engine = self._engine(key)
        return engine.machine.timed(choice, lambda: self._timed_passes(engine, key))

    def _timed_passes(self, engine: Engine, key: Choice) -> float:
        target, took_s = engine.target, 0.0
        widths = _SLOW_PATTERN if self._slow else _PATTERN
        for index, width in enumerate((1, *widths)):  # the first pass makes the threads
            n_past = self._fill(engine, key)
            ids, n = [(7 * i + 11) % target.n_vocab for i in range(width)], width - 1
            draft = Draft(tuple(ids[1:]), chain_parents(n), (0,) * n, (1.0,) * n) if n else NO_DRAFT
            began_s = time.perf_counter()
            target.eval([Plan(0, n_past, ids[:1], draft)])
            took_s += time.perf_counter() - began_s if index else 0.0
            if not (target.capabilities.rewind and target.retain(0, n_past)):
                del self._filled[key]
        return took_s / sum(widths)

    def _fill(self, engine: Engine, key: Choice) -> int:
        """Tokens of context in sequence 0."""
        if key not in self._filled:
            n = _N_CONTEXT_SLOW if self._slow else _N_CONTEXT
            n = n if engine.target.capabilities.rewind else _N_CONTEXT_SHORT
            n = min(n, engine.n_ctx // 2)
            engine.target.clear(0)
            ids = [(13 * i + 5) % engine.target.n_vocab for i in range(n)]
            for first in range(0, n, engine.target.n_batch):
                engine.target.eval([Plan(0, first, ids[first : first + engine.target.n_batch])])
            self._filled[key] = n
        return self._filled[key]

    def answers(self, choice: Choice) -> float:
        """Seconds of a token over greedy answers to the prompts, decoding alone."""
        key = replace(choice, drafter=None, max_draft=None)
        engine, drafter = self._engine(key), choice.drafter or self._task.config.drafter
        self._filled.pop(key, None)
        limits = Limits(self._n_tokens, max_draft=choice.max_draft or int(self._task.config.max_draft))
        prompts = self._task.prompts[: self._n_prompts]
        if (key, drafter) not in self._warm:
            self._warm.add((key, drafter))
            _answer(engine, prompts[0], replace(limits, max_tokens=8), drafter)
        found = [_answer(engine, prompt, limits, drafter) for prompt in prompts]
        n_decoded = sum(n for _, n in found)
        if not n_decoded:
            raise ModelError("the answers have no more than one token: nothing can be timed")
        return sum(seconds for seconds, _ in found) / n_decoded

    def _engine(self, key: Choice) -> Engine:
        if key in self._engines:
            return self._engines[key]
        others = [other for other in self._engines if other != Choice()]
        while len(others) >= _N_OPEN - 1:
            self._close(others.pop(0))
        try:
            return self._open(key)
        except ModelError:
            if not others:
                raise
        for other in others:  # one at a time, where the memory holds no more
            self._close(other)
        return self._open(key)

    def _open(self, key: Choice) -> Engine:
        task = self._task
        config = replace(
            task.config, n_ctx=min(task.config.n_ctx or _N_CTX, _N_CTX), max_draft=self._n_reserved, max_tokens=None
        )
        self._tell(f"loading {key.file or task.path.name}, {key}")
        engine = Engine(open_model(key.file or str(task.path), config, 1, None, replace(key, file=None)))
        if key.kv_type is not None and not same_kv(engine.config.kv_type or "", key.kv_type):
            engine.close()
            raise ModelError("it is not certified to be exact, as the default is")
        self._engines[key] = engine
        return engine

    def _close(self, key: Choice) -> None:
        self._filled.pop(key, None)
        self._warm = {(other, drafter) for other, drafter in self._warm if other != key}
        self._engines.pop(key).close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all engines."""
        with ExitStack() as stack:
            for engine in self._engines.values():
                stack.callback(engine.close)


class Watch:
    """Tells whether other programs or heat disturbed what was measured."""

    def __init__(self, sysfs: Sysfs, topology: Topology, n_threads: int) -> None:
        """`n_threads` of the largest team: cores beyond it may be busy."""
        self._load = LoadReader(sysfs)
        self._monitor = Monitor(sysfs, performance=topology.performance)
        self._n_spare = max(0, len(topology.cores) - n_threads)
        self.last: str | None = None
        """The latest disturbance."""

    def trouble(self) -> str | None:
        """What disturbed since the last call, some tenths of a second ago or more; None: nothing that can be read."""
        others, now = self._load.read(time.perf_counter()).busy_others, self._monitor.latest()
        found = None
        if now.throttled:
            found = "the processor is held back by heat or weak supply"
        elif others is not None and others > self._n_spare + _FREE:
            found = f"other programs take {others:.1f} cores"
        self.last = found or self.last
        return found

    def __enter__(self) -> Self:
        """Begin to read the sensors."""
        self._load.read(time.perf_counter())
        self._monitor.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._monitor.close()


def _answer(engine: Engine, prompt: str, limits: Limits, drafter: str) -> tuple[float, int]:
    """Seconds and tokens of decoding a greedy answer, the first token aside."""
    ids = engine.prompt(engine.render([Message("user", prompt)]))
    ids = ids[-max(1, engine.n_ctx - (limits.max_tokens or 0)) :]  # of one that does not fit, the end
    stream = engine.stream(ids, Sampling(), limits, drafter=drafter)
    for _ in stream:
        pass
    return stream.result.report.decode_s, max(0, len(stream.result.tokens) - 1)
