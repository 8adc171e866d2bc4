"""This machine as a profile, from what its engine measured, and whether the simulator predicts what it does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, pstdev

from edgespec.bench.device_model import Cluster, Profile
from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.profiles import load_profiles
from edgespec.bench.ratios import Cell, Ratio, aggregate, geomean
from edgespec.bench.report import with_marks
from edgespec.bench.runner import Run
from edgespec.bench.sim_texts import Texts, pieces_of
from edgespec.bench.simulate import Scene, simulate
from edgespec.bench.trace import Trace, TracedEngine, trace_run
from edgespec.core.cost import CostTable, slower
from edgespec.core.heat import Policy
from edgespec.core.trace import RoundTrace
from edgespec.interfaces import Limits

_N_TOKENS = 48
_MEASURED = ("measured", "the cost table of this model on this machine, and two short answers")
_ASSUMED = ("assumed", "fewer threads take as much longer as core/cost.py guesses")
_UNKNOWN = ("assumed", "not known here: neither heat nor energy is simulated")


@dataclass(frozen=True, slots=True)
class Python:
    """What rounds take beside their passes. Seconds; `noise` is the deviation of the logarithm of a pass's time."""

    round_s: float
    ask_s: float
    noise: float


def measure(engine: TracedEngine, prompt: Sequence[int]) -> Python:
    """Time two short answers of a real engine, plain and drafted.

    Raises:
        EdgespecError: the engine refuses the request, or its target a batch.
    """
    plain = trace_run(engine, prompt, limits=Limits(_N_TOKENS, max_draft=0, ignore_eog=True), drafter="none").rounds
    auto = trace_run(engine, prompt, limits=Limits(_N_TOKENS, ignore_eog=True), drafter="auto").rounds
    single = [math.log(found.verify_s) for found in plain if found.verify_s > 0.0]
    # Stalls are other programs' doing: the spread of the middle is what passes have by themselves.
    middle = sorted(single)[len(single) // 10 : len(single) - len(single) // 10]
    return Python(_between_s(plain), median([found.draft_s for found in auto] or [0.0]), pstdev(middle or [0.0]))


def _between_s(rounds: Sequence[RoundTrace]) -> float:
    """Seconds from the end of a pass to the beginning of the next, without the drafter's."""
    found = [b.began_s - a.began_s - a.verify_s - b.draft_s for a, b in itertools.pairwise(rounds)]
    return max(0.0, median(found or [0.0]))


def profile_here(table: CostTable, python: Python, name: str = "this machine") -> Profile:
    """A profile whose staircase is a cost table; heat and energy are unknown in it.

    Args:
        table: what passes cost, with the threads they were timed with.
        python: what rounds cost beside.
        name: of the profile.
    """
    base = load_profiles()["server"]
    n, one_s = max(table.one, table.wide), table.base_s[1]
    widest = max(table.base_s)
    # Roofline figures only say how times move with threads; in units in which a core does 1e9 a second.
    core = Cluster(name, n, (500.0, 1000.0), (0.0, 0.0), 1.0)
    gb_s = tuple(1.0 / (one_s * slower(n, k, wide=False)) for k in range(1, n + 1))
    basis = dict.fromkeys(("stairs", "slope_one", "slope_wide", "switch", "noise", "round_s", "ask_s"), _MEASURED)
    return replace(
        base,
        name=name,
        conditions="as it is now",
        clusters=(core,),
        memory_gb_s=gb_s,
        weights_gb=1.0,
        macs=table.base_s[widest] / widest * n * 1e9,
        stairs=tuple(sorted(table.base_s.items())),
        slope_one=table.slope_one,
        slope_wide=table.slope_wide,
        switch=table.switch_s / one_s,
        noise=python.noise,
        round_s=python.round_s,
        ask_s=python.ask_s,
        basis={**basis, "memory_gb_s": _ASSUMED, "macs": _ASSUMED, "heat and energy": _UNKNOWN},
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """A mode's ratio to plain decoding, predicted and measured, by group and in the geometric mean over groups."""

    mode: str
    groups: Mapping[str, tuple[Ratio, Ratio]]
    mean: tuple[Ratio, Ratio]
    runs: int
    """Measured."""
    marked: int
    """Of these, that give no ratio: other programs used the machine otherwise than beside plain's run."""

    @property
    def error(self) -> float | None:
        """Predicted mean over measured, less 1; None where either is unknown."""
        predicted, measured = (ratio.value for ratio in self.mean)
        return predicted / measured - 1.0 if predicted and measured else None


def texts_of(runs: Sequence[Run], prompts: Mapping[str, Sequence[int]], piece: Callable[[int], bytes]) -> Texts:
    """The texts that plain decoding wrote in a benchmark, to be simulated; `piece` gives a token's bytes."""
    found = {run.question_id: run for run in runs if run.mode == PLAIN and len(run.ids) > 1 and run.error is None}
    traces = tuple(Trace(tuple(prompts[key]), run.ids, (), key, run.group) for key, run in found.items())
    return Texts(traces, pieces_of(traces, piece))


def compare(
    profile: Profile, texts: Texts, modes: Sequence[Mode], measured: Sequence[Run], policy: Policy, max_draft: int
) -> list[Compared]:
    """Simulate what was measured, and put both beside each other; plain decoding is what both are ratios to."""
    outcomes = simulate(Scene(profile, max_draft=max_draft), texts, modes, [policy])
    found = aggregate([run for outcome in outcomes for run in outcome.runs]), aggregate(with_marks(measured))
    names = [mode.name for mode in modes if mode.name != PLAIN]
    return [_compared(name, *found) for name in names]


def _compared(
    mode: str, predicted: Mapping[str, Mapping[str, Cell]], measured: Mapping[str, Mapping[str, Cell]]
) -> Compared:
    groups = {
        group: (predicted[group][mode].ratio, measured[group][mode].ratio)
        for group in predicted
        if mode in predicted[group] and mode in measured.get(group, {})
    }
    means = tuple(geomean([pair[i] for pair in groups.values()]) for i in (0, 1))
    cells = [measured[group][mode] for group in groups]
    return Compared(mode, groups, (means[0], means[1]), sum(c.runs for c in cells), sum(c.marked for c in cells))


def comparison_table(found: Sequence[Compared]) -> str:
    """Predicted and measured ratios for a terminal."""
    lines = [f"{'mode':<10}{'group':<14}{'predicted':>10} {'measured':>9} {'95 % interval':>15} {'error':>8}"]
    for row in found:
        pairs = {**row.groups, "(all groups)": row.mean}
        for i, (group, (predicted, measured)) in enumerate(pairs.items()):
            interval = "" if measured.low is None else f"{measured.low:.2f}..{measured.high:.2f}"
            error = predicted.value / measured.value - 1.0 if predicted.value and measured.value else None
            line = f"{row.mode if i == 0 else '':<10}{group:<14}{_three(predicted):>10} {_three(measured):>9}"
            lines.append(f"{line} {interval:>15} {'–' if error is None else f'{100 * error:+.1f} %':>8}".rstrip())
    if any(row.marked for row in found):
        n, n_all = sum(row.marked for row in found), sum(row.runs for row in found)
        lines += ["", f"{n} of {n_all} runs give no ratio: other programs worked otherwise than beside plain decoding"]
    return "\n".join(lines) + "\n"


def comparison_json(found: Sequence[Compared]) -> dict[str, object]:
    """The same for a program."""
    modes = {
        row.mode: {
            "groups": {group: _pair(pair) for group, pair in row.groups.items()},
            **_pair(row.mean),
            "error": row.error,
            "runs": row.runs,
            "marked": row.marked,
        }
        for row in found
    }
    return {"version": 1, "modes": modes}


def _pair(pair: tuple[Ratio, Ratio]) -> dict[str, float | None]:
    predicted, measured = pair
    return {"predicted": predicted.value, "measured": measured.value, "low": measured.low, "high": measured.high}


def _three(ratio: Ratio) -> str:
    return "–" if ratio.value is None else f"{ratio.value:.3f}"
