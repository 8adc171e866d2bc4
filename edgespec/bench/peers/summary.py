"""The comparison as numbers, a table, three lines, and JSON. All intervals are `ratios`' own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec.bench.marks import MANY_BUSY
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.peers.arms import AUTO, AUTO_STOCK, PLAIN_STOCK, Arm
from edgespec.bench.peers.match import Match
from edgespec.bench.ratios import Cell, Ratio, aggregate, geomean
from edgespec.bench.runner import Run

SCHEMA = 1
TIMES = (
    "Decode seconds are each program's own count: of llama-server timings.predicted_ms; of edgespec, llama-cpp-python "
    "and the bare loop the time from the first token to the last, at the iterator that a caller reads."
)
_QUIET = 0.05
_IDLE = 0.01
"""Share of one core that idle workers may have used."""
_DASH = "–"
_OF_A_RUN = (
    "question_id", "group", "round", "mode", "place", "error", "tokens", "decoded", "decode_s", "ttft_s", "total_s",
    "drafted", "accepted", "finish_reason", "mark",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One arm in one group."""

    cell: Cell
    """With its ratio to edgespec's plain decoding."""
    own: Ratio
    """To its own plain decoding; unknown for plain arms."""
    same: int
    """Answers that are edgespec's plain text of the same round, of `compared`."""
    compared: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that is told. A peer that failed in a group has no part in the means."""

    groups: Mapping[str, Mapping[str, Line]]
    means: Mapping[str, tuple[Ratio, Ratio]]
    """By arm: geometric means over all groups of the ratio to edgespec's plain, and to the arm's own."""
    best: str | None
    """The fastest peer by geometric mean; None: no peer has a ratio in every group."""
    auto_to_best: Ratio
    worst: tuple[str, str, Ratio] | None
    """Where edgespec's drafting does worst against the fastest peer of a group: group, peer, ratio."""
    best_gain: tuple[str, Ratio] | None
    """The peer that gains most over its own plain decoding."""
    kernels: Mapping[str, Mapping[str, Ratio]]
    """By arm ("auto", "plain") and group: how many times as fast as with ggml's own kernels."""

    @property
    def gain(self) -> Ratio:
        """Edgespec's own gain over plain decoding."""
        return self.means[AUTO][0] if AUTO in self.means else Ratio()


def summarise(match: Match, arms: Sequence[Arm], seed: int = 0) -> Summary:
    """Fold the runs; `seed` is that of the resampling."""
    runs, names = match.runs, [arm.name for arm in arms]
    cells = aggregate(runs, seed)
    own = {arm.name: against(runs, arm.name, arm.plain, seed) if arm.drafts else {} for arm in arms}
    groups = {
        group: {
            name: Line(modes[name], own[name].get(group, Ratio()), *_same(match, group, name))
            for name in names if name in modes
        }
        for group, modes in cells.items()
    }  # fmt: skip
    means = {
        name: (
            _mean([lines[name].cell.ratio for lines in groups.values() if name in lines], len(groups)),
            _mean([lines[name].own for lines in groups.values() if name in lines], len(groups)),
        )
        for name in names
    }
    peers = [arm for arm in arms if not arm.ours]
    best = _best({arm.name: means[arm.name][0] for arm in peers})
    gainer = _best({arm.name: means[arm.name][1] for arm in peers if arm.drafts})
    to_best = against(runs, AUTO, best, seed) if best else {}
    return Summary(
        groups,
        means,
        best,
        _mean([to_best[group] for group in groups if group in to_best], len(groups)),
        _worst(runs, groups, [arm.name for arm in peers], seed),
        (gainer, means[gainer][1]) if gainer else None,
        {arm: against(runs, arm, stock, seed) for arm, stock in ((AUTO, AUTO_STOCK), (PLAIN, PLAIN_STOCK))},
    )


def against(runs: Sequence[Run], arm: str, base: str, seed: int = 0) -> dict[str, Ratio]:
    """By group, how many times as fast as `base` an arm is; groups in which either is missing are left out."""
    both = [replace(run, mode=PLAIN if run.mode == base else "arm") for run in runs if run.mode in (arm, base)]
    return {
        group: modes["arm"].ratio for group, modes in aggregate(both, seed).items() if modes.keys() == {PLAIN, "arm"}
    }


def _mean(ratios: Sequence[Ratio], n_groups: int) -> Ratio:
    """Over all groups or not at all: a mean over fewer groups is no match for one over all."""
    whole = len(ratios) == n_groups and all(ratio.value is not None for ratio in ratios)
    return geomean(ratios) if whole else Ratio()


def _best(by_name: Mapping[str, Ratio]) -> str | None:
    known = {name: ratio.value for name, ratio in by_name.items() if ratio.value is not None}
    return max(known, key=lambda name: known[name]) if known else None


def _worst(
    runs: Sequence[Run], groups: Mapping[str, Mapping[str, Line]], peers: Sequence[str], seed: int
) -> tuple[str, str, Ratio] | None:
    found: list[tuple[float, str, str, Ratio]] = []
    for group, lines in groups.items():
        rival = _best({name: lines[name].cell.ratio for name in peers if name in lines})
        if rival is None:
            continue
        ratio = against([run for run in runs if run.group == group], AUTO, rival, seed).get(group, Ratio())
        if ratio.value is not None:
            found.append((ratio.value, group, rival, ratio))
    return min(found, key=lambda item: item[0])[1:] if found else None


def _same(match: Match, group: str, name: str) -> tuple[int, int]:
    compared = same = 0
    for run in match.runs:
        plain = match.texts.get((run.question_id, run.round, PLAIN))
        text = match.texts.get((run.question_id, run.round, name))
        if run.mode == name and run.group == group and plain is not None and text is not None:
            compared += 1
            same += text == plain
    return same, compared


def table(summary: Summary, match: Match) -> str:
    """For a terminal of 100 columns."""
    head = (
        f"{'group':<14}{'program':<19}{'tok/s':>7} {'to plain':>8} {'95 % interval':>15} {'to own':>6}"
        f" {'95 % interval':>15} {'acc.':>5} {'same':>7}"
    )
    rows = [head]
    for group, lines in summary.groups.items():
        for index, (name, line) in enumerate(lines.items()):
            rows.append(_row(group if index == 0 else "", name, line))
    rows += ["", f"{'geometric mean over groups':<33}{'':>7} {'to plain':>8} {'':>15} {'to own':>6}"]
    for name, (ratio, own) in summary.means.items():
        rows.append(f"{'':<14}{_shown(name):<19}{'':>7} {_two(ratio)} {_two(own, 6)}")
    for arm, by_group in summary.kernels.items():
        if by_group:
            rows += ["", f"{_shown(arm) + ', its kernels against those of ggml':<49}ratio   95 % interval"]
            rows += [f"{'':<14}{group:<26}{_two(ratio, 14)}" for group, ratio in by_group.items()]
            rows.append(
                f"{'':<14}{'geometric mean':<26}{_two(_mean(list(by_group.values()), len(summary.groups)), 14)}"
            )
    rows += ["", *textwrap.wrap(TIMES, 100), *_notes(summary, match), "", *verdict(summary)]
    return "\n".join(row.rstrip() for row in rows) + "\n"


def verdict(summary: Summary) -> list[str]:
    """The three lines at the end."""
    if summary.best is None:
        return ["No peer has a ratio in every group: nothing to compare with."]
    lines = [f"edgespec auto against {summary.best}, the fastest peer by geometric mean: {_text(summary.auto_to_best)}"]
    if summary.worst is None:
        lines.append("Worst group against its fastest peer: unknown")
    else:
        group, rival, ratio = summary.worst
        lines.append(f"Worst group against its fastest peer: {group}, {_text(ratio)} against {rival}")
    gain = f"Gain over own plain decoding: edgespec {_text(summary.gain)}"
    if summary.best_gain is None:
        return [*lines, f"{gain}; of the peers none is known"]
    name, ratio = summary.best_gain
    return [*lines, f"{gain}; the best of the peers, {name}, {_text(ratio)}"]


def to_json(summary: Summary, match: Match, about: Mapping[str, object]) -> dict[str, object]:
    """All of it as plain data; unknown is null."""
    return {
        "schema": SCHEMA, **about, "times": TIMES, "partial": match.partial,
        "idle_cpu_s": match.idle_cpu_s, "asked_s": match.asked_s,
        "groups": {
            group: {name: _line_json(line) for name, line in lines.items()} for group, lines in summary.groups.items()
        },
        "geomean": {
            name: {**_ratio_json("ratio", ratio), **_ratio_json("own_ratio", own)}
            for name, (ratio, own) in summary.means.items()
        },
        "summary": {
            "best_peer": summary.best,
            **_ratio_json("auto_to_best_peer", summary.auto_to_best),
            "worst_group": summary.worst[0] if summary.worst else None,
            "worst_group_peer": summary.worst[1] if summary.worst else None,
            **_ratio_json("worst_group_ratio", summary.worst[2] if summary.worst else Ratio()),
            **_ratio_json("gain", summary.gain),
            "best_gain_peer": summary.best_gain[0] if summary.best_gain else None,
            **_ratio_json("best_gain", summary.best_gain[1] if summary.best_gain else Ratio()),
        },
        "kernels_to_ggml": {
            arm: {group: _ratio_json("ratio", ratio) for group, ratio in by_group.items()}
            for arm, by_group in summary.kernels.items()
        },
        "runs": [
            {name: getattr(run, name) for name in _OF_A_RUN}
            | {"text": match.texts.get((run.question_id, run.round, run.mode))}
            for run in match.runs
        ],
    }  # fmt: skip


def _line_json(line: Line) -> dict[str, object]:
    cell = line.cell
    return {
        "runs": cell.runs, "failed": cell.failed, "pairs": cell.pairs, "tokens": cell.tokens, "decoded": cell.decoded,
        "decode_s": cell.decode_s, "tok_s": cell.tok_s, "ttft_s": cell.ttft_s, "drafted": cell.drafted,
        "accepted": cell.accepted, "acceptance": cell.acceptance, **_ratio_json("ratio", cell.ratio),
        **_ratio_json("own_ratio", line.own), "same_text": line.same, "compared_texts": line.compared,
    }  # fmt: skip


def _ratio_json(name: str, ratio: Ratio) -> dict[str, float | None]:
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _notes(summary: Summary, match: Match) -> list[str]:
    notes = []
    if match.partial:
        notes.append("PARTIAL: interrupted; the numbers are of the runs that were finished.")
    noise = summary.means[PLAIN_AGAIN][0].value if PLAIN_AGAIN in summary.means else None
    if noise is not None and abs(noise - 1.0) > _QUIET:
        notes.append(f"NOT QUIET: edgespec's plain decoding against itself is {noise:.3f}; measure again.")
    if match.idle_cpu_s is None:
        notes.append("Whether idle workers were idle is not known here.")
    elif match.idle_cpu_s > _IDLE * match.asked_s:
        notes.append(f"NOT QUIET: idle workers took {match.idle_cpu_s:.1f} s of processor time from the others.")
    n_marked = sum(run.mark is not None for run in match.runs)
    if n_marked:
        notes.append(
            f"{n_marked} of {len(match.runs)} runs give no ratio: other programs or the host took more than "
            f"{MANY_BUSY:g} cores meanwhile."
        )
    failures: dict[tuple[str, str], int] = {}
    for run in match.runs:
        if run.error is not None:
            failures[run.mode, run.error] = failures.get((run.mode, run.error), 0) + 1
    return [*notes, *(f"FAILED {name}, {n} times: {error}" for (name, error), n in failures.items())]


def _row(group: str, name: str, line: Line) -> str:
    cell = line.cell
    speed = _DASH if cell.tok_s is None else f"{cell.tok_s:.1f}"
    accepted = _DASH if cell.acceptance is None else f"{100 * cell.acceptance:.0f} %"
    ratio = f"{_DASH:>8} {'':>15}" if name == PLAIN else _two(cell.ratio)
    failed = f"  {cell.failed} failed" if cell.failed else ""
    same = f"{line.same}/{line.compared}"
    return f"{group[:13]:<14}{_shown(name):<19}{speed:>7} {ratio} {_two(line.own, 6)} {accepted:>5} {same:>7}{failed}"


def _shown(name: str) -> str:
    return {PLAIN: "edgespec plain", AUTO: "edgespec auto", PLAIN_AGAIN: "(noise)"}.get(name, name)


def _two(ratio: Ratio, width: int = 8) -> str:
    value = _DASH if ratio.value is None else f"{ratio.value:.3f}"
    return f"{value:>{width}} {_interval(ratio):>15}"


def _text(ratio: Ratio) -> str:
    if ratio.value is None:
        return "unknown"
    return f"{ratio.value:.3f}" + (f" ({_interval(ratio)})" if ratio.low is not None else "")


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}..{ratio.high:.3f}"
