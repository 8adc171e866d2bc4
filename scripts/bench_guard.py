"""Whether the work of a round has grown: `bench_guard.py [--update]`, compared with scripts/bench_guard.json.

Counts instead of times, so that it gives the same answer on any machine, busy or not: executed bytecode by part of the
hot path, numpy calls on rows and the elements they went over, and the most bytes that were held for a moment. Fake
target, fixed text. Not seen: work inside of C functions that takes no memory, and copies smaller than what is held
anyway. Exit code 1 where a count is more than 5 % above its baseline. Bytecode is another in every minor version of
Python: each has a baseline of its own, and one without is told and passed over.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import sysconfig
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import edgespec
from edgespec.conditions import Team
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.interfaces import Limits, Plan, Rows, Sampling
from edgespec.testing import FakeClock, FakeTarget

BASELINE = Path(__file__).with_suffix(".json")
VERSION = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
TOLERANCE = 0.05
BYTES_TOLERANCE = 0.15
"""Python's free lists move these by 2 %; a copy of the text or of a row is several times as much."""
N_VOCAB, N_PROMPT, N_ROUNDS = 16_384, 700, 150
WIDTHS_S = {1: 0.010, 2: 0.013, 4: 0.018, 8: 0.028, 16: 0.048}
"""What passes cost on the fake clock: drafts pay, so that rounds have drafts."""

PARTS = {
    "core/round.py": "round", "core/generation.py": "round", "core/session.py": "round", "core/stats.py": "round",
    "core/drafting.py": "control", "core/controller.py": "control", "core/acceptance.py": "control",
    "core/cost.py": "control", "core/governor.py": "control", "core/contention.py": "control",
    "draft/suffix.py": "index", "core/verify.py": "verify", "core/stream.py": "stream",
    "core/sampling.py": "sampler", "core/cutoffs.py": "sampler", "core/noise.py": "sampler",
    "core/penalties.py": "sampler", "core/mirostat.py": "sampler", "core/logprobs.py": "sampler",
}  # fmt: skip
"""Files of the hot path. Whatever else they call counts as theirs, but for Python's own library and installed ones."""
_PACKAGE = Path(edgespec.__file__).parent
_PART_OF_FILE = {str(_PACKAGE / name): part for name, part in PARTS.items()}
_FAKES = str(_PACKAGE / "testing.py")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

Counts = dict[str, float]


@dataclass(frozen=True)
class Scenario:
    """One way of decoding the fixed text."""

    sampling: Sampling
    drafting: bool = True
    stop: tuple[str, ...] = ()


SCENARIOS = {
    "greedy, plain": Scenario(Sampling(), drafting=False),
    "greedy": Scenario(Sampling()),
    "sampled": Scenario(Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1)),
    "sampled, whole vocabulary": Scenario(Sampling(temperature=0.7, seed=2)),
    "penalties, min-p, stop strings": Scenario(
        Sampling(temperature=0.8, min_p=0.05, repeat_penalty=1.1, dry_multiplier=0.8, dry_breakers=((5,),), seed=3),
        stop=("###", "\n\nUser:"),
    ),
}


class Instructions:
    """Counts executed bytecode by part while it is entered."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Instructions:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        part = self._part(frame)
        if part is None:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        counts = self.counts

        def executed(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
            counts[part] += event == "opcode"
            return executed

        return executed

    def _part(self, frame: FrameType | None) -> str | None:
        """The part that a frame works for: its file's, else its caller's."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name in _PART_OF_FILE:
                return _PART_OF_FILE[name]
            if name == _FAKES or name.startswith(_LIBRARIES):
                return None
            frame = frame.f_back
        return None


_SORTS = {"sort", "argsort", "lexsort", "unique"}
_COUNTED_METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "clip", "copy", "cumsum", "dot", "max",
    "mean", "min", "nonzero", "partition", "prod", "sort", "std", "sum", "take", "tolist", "var",
)  # fmt: skip


class Counted(np.ndarray[Any, Any]):
    """An array that counts what is done to it and to everything computed from it. Sorting n counts as n log2 n."""

    calls = 0
    elements = 0.0

    @staticmethod
    def count(name: str, arrays: Sequence[Any]) -> None:
        """One call over the largest of `arrays`."""
        n = max((array.size for array in arrays if isinstance(array, np.ndarray)), default=1)
        Counted.calls += 1
        Counted.elements += n * max(1.0, math.log2(max(n, 1))) if name in _SORTS else n

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            kwargs["out"] = tuple(_bare(kwargs["out"]))
        result = getattr(ufunc, method)(*_bare(inputs), **kwargs)
        Counted.count(ufunc.__name__, (*inputs, result))
        return _counted(result)

    def __array_function__(self, func: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        result = func(*_bare(args), **{name: _bare((value,))[0] for name, value in kwargs.items()})
        flat = [item for arg in args for item in (arg if isinstance(arg, tuple | list) else (arg,))]
        Counted.count(func.__name__, flat)
        return _counted(result)

    def __getitem__(self, key: Any) -> Any:
        result = self.view(np.ndarray)[_bare((key,))[0]]
        if isinstance(key, np.ndarray):
            Counted.count("take", (result, key))
        return _counted(result)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.view(np.ndarray)[_bare((key,))[0]] = _bare((value,))[0]
        Counted.count("put", (key, value))


def _method(name: str) -> Callable[..., Any]:
    def counted(self: Counted, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.view(np.ndarray), name)(*_bare(args), **kwargs)
        Counted.count(name, (self, result))
        return _counted(result)

    return counted


for _name in _COUNTED_METHODS:
    setattr(Counted, _name, _method(_name))


def _bare(values: Sequence[Any]) -> list[Any]:
    return [
        value.view(np.ndarray) if isinstance(value, Counted)
        else type(value)(_bare(value)) if type(value) in (tuple, list)
        else value
        for value in values
    ]  # fmt: skip


def _counted(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_counted(item) for item in result)
    return result.view(Counted) if isinstance(result, np.ndarray) else result


class WatchedTarget(FakeTarget):
    """Says before and after each pass that what happens meanwhile is not the round's; may return counting rows."""

    def __init__(self, script: Sequence[int], clock: FakeClock, *, counting: bool) -> None:
        widths, seconds = list(WIDTHS_S), list(WIDTHS_S.values())
        super().__init__(
            N_VOCAB, 4096, n_batch=512, script=script, clock=clock,
            cost_s=lambda n, _n_ctx: float(np.interp(n, widths, seconds)),
        )  # fmt: skip
        self._counting = counting
        self.before_pass: Callable[[], object] = lambda: None
        self.after_pass: Callable[[], object] = lambda: None

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        self.before_pass()
        rows = super().eval(plans)
        self.after_pass()
        return [row.view(Counted) for row in rows] if self._counting else rows


def fixed_text(n: int) -> list[int]:
    """Tokens in which passages come back, as in real text, and new ones come up."""
    rng = random.Random(7)
    passages = [[rng.randrange(2, N_VOCAB) for _ in range(rng.randint(4, 14))] for _ in range(60)]
    text: list[int] = []
    while len(text) < n:
        text += rng.choice(passages)
    return text[:n]


def piece(token: int) -> bytes:
    """Text of a token: words, ends of words, line ends."""
    if token % 17 == 0:
        return b"\n"
    return (b" " if token % 3 else b"") + bytes([97 + token % 26]) * (1 + token % 4)


class Run:
    """A scenario ready to be played, round by round."""

    def __init__(self, scenario: Scenario, *, counting: bool = False) -> None:
        text, self._clock = fixed_text(4096), FakeClock()
        self.target = WatchedTarget(text, self._clock, counting=counting)
        cost = CostModel(CostTable(WIDTHS_S))
        tools = Drafting(SuffixDrafter(piece), N_VOCAB) if scenario.drafting else None
        controller = Controller(cost, Acceptance(Prior(), scenario.sampling.temperature)) if tools else None
        self._generation = Generation(
            Session(self.target), text[:N_PROMPT], scenario.sampling, Limits(stop=scenario.stop), piece, self._clock,
            tools, controller,
        )  # fmt: skip
        self._governor = Governor(Team(2, 2), HeatPolicy("balanced", 15, 2), n_usable=2, n_draft_max=15)
        self._governor.use_cost(cost, self._clock())

    def round(self) -> None:
        """One round."""
        play_round([self._generation], self.target, self._clock, self._governor)

    @property
    def n_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self._generation.tokens)


def measure(scenario: Scenario) -> Counts:
    """All counts of a scenario, in instructions, calls, elements and bytes."""
    warm = Run(scenario)  # CPython rewrites bytecode that has run a few times
    for _ in range(N_ROUNDS):
        warm.round()
    run = Run(scenario)
    with Instructions() as instructions:
        for _ in range(N_ROUNDS):
            run.round()
    found: Counts = {f"instructions, {part}": n for part, n in sorted(instructions.counts.items())}
    found["instructions"] = instructions.counts.total()

    run = Run(scenario, counting=True)
    Counted.calls, Counted.elements = 0, 0.0
    for _ in range(N_ROUNDS):
        run.round()
    found |= {"numpy calls": Counted.calls, "numpy elements": round(Counted.elements)}
    found["bytes held for a moment"] = _moment_bytes(Run(scenario))
    found["tokens"] = run.n_tokens
    return found


def _moment_bytes(run: Run) -> int:
    """Sum over rounds of the memory that was held and given back, before the pass and after it."""
    total = began = 0

    def begin() -> None:
        nonlocal began
        tracemalloc.reset_peak()
        began = tracemalloc.get_traced_memory()[0]

    def end() -> None:
        nonlocal total
        now, peak = tracemalloc.get_traced_memory()
        total += peak - max(now, began)

    run.target.before_pass, run.target.after_pass = end, begin
    tracemalloc.start()
    try:
        for _ in range(N_ROUNDS):
            begin()
            run.round()
            end()
    finally:
        tracemalloc.stop()
    return total


def compare(found: Counts, baseline: Counts) -> tuple[list[str], list[str]]:
    """What grew beyond the tolerance, and what shrank by as much, one line each."""
    grown, shrunk = [], []
    for name in sorted(found.keys() | baseline.keys()):
        now, before = found.get(name, 0), baseline.get(name, 0)
        if now == before:
            continue
        room = _room(name, before, baseline)
        line = f"{name}: {before:,.0f} -> {now:,.0f}" + (f" ({now / before - 1:+.1%})" if before else "")
        if name == "tokens":
            # Other tokens are another text or other drafts: every other count is of something else then.
            grown.append(f"{line}: the rounds are others than those of the baseline")
        elif now > before + room:
            grown.append(line)
        elif now < before - room:
            shrunk.append(line)
    return grown, shrunk


def _room(name: str, before: float, baseline: Counts) -> float:
    if name.startswith("instructions, "):  # a statement more in a small part is nothing to a round
        return TOLERANCE * before + 0.1 * TOLERANCE * baseline.get("instructions", 0)
    return (BYTES_TOLERANCE if name.startswith("bytes") else TOLERANCE) * before


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="make what is measured now the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="another file than scripts/bench_guard.json")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="one scenario; may be given several times")
    args = parser.parse_args(arguments)
    try:
        known: dict[str, dict[str, Counts]] = json.loads(args.baseline.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = {}
    except (OSError, ValueError) as error:
        parser.error(f"cannot read {args.baseline}: {error}")
    if VERSION not in known and not args.update:
        print(f"no baseline for {VERSION}, only for {', '.join(known) or 'nothing'}: not compared (--update adds one)")
        return 0
    found = {name: measure(SCENARIOS[name]) for name in args.only or SCENARIOS}
    if args.update:
        kept = known.get(VERSION, {}) if args.only else {}
        known[VERSION] = {**kept, **found}
        args.baseline.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{args.baseline.name}: {len(found)} scenarios of {VERSION} written")
        return 0
    return _judge(found, known[VERSION])


def _judge(found: dict[str, Counts], known: dict[str, Counts]) -> int:
    failed = False
    for scenario, counts in found.items():
        if scenario not in known:
            print(f"{scenario}: not in the baseline; --update adds it")
            failed = True
            continue
        grown, shrunk = compare(counts, known[scenario])
        failed |= bool(grown)
        per_token = counts["instructions"] / counts["tokens"]
        print(f"{scenario}: {per_token:,.0f} instructions a token{', MORE WORK THAN BEFORE' if grown else ''}")
        for line in grown:
            print(f"  GROWN  {line}")
        for line in shrunk:
            print(f"  shrunk {line}; --update keeps it so")
    if failed:
        print("If the work is worth it: bench_guard.py --update, and say in the commit why.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
