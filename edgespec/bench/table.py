"""A benchmark's report for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from edgespec.bench.ceiling import LOSSES
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.ratios import Cell, Ratio
from edgespec.bench.report import BenchReport

_DASH = "–"
_WIDTH = 80
_QUIET = 0.05
"""Plain decoding further than this from itself: the machine was not quiet, and no ratio of it is to be trusted."""
_T = TypeVar("_T")


def table(report: BenchReport) -> str:
    """The report for a terminal of 80 columns."""
    head = f"{'group':<13}{'mode':<10}{'tok/s':>6} {'ratio':>6} {'95 % interval':>14} {'tok/rnd':>7} {'acc.':>5}"
    lines = [f"{head} {'first':>7} {'e2e':>5}", *_by_group(report, _row)]
    lines += ["", f"geometric mean over groups{'ratio':>12} {'95 % interval':>14} {'e2e':>20}", *_means(report)]
    if any(cell.warm for modes in report.cells.values() for cell in modes.values()):
        lines += ["", f"{'asked again':<13}{'mode':<10}{'tok/s':>6} {'ratio':>6} {'95 % interval':>14} {'tok/rnd':>7} "
                  f"{'acc.':>5} {'first':>7}", *_by_group(report, _warm_row)]  # fmt: skip
    for lines_of in (_ceiling, _footprints, _notes):
        found = lines_of(report)
        lines += ["", *found] if found else []
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _by_group(report: BenchReport, row: Callable[[str, str, Cell], list[str]]) -> list[str]:
    return [
        line
        for group, modes in report.cells.items()
        for index, (mode, cell) in enumerate(_in_order(modes))
        for line in row(group if index == 0 else "", mode, cell)
    ]


def _row(group: str, mode: str, cell: Cell) -> list[str]:
    ratio, interval, e2e = (_DASH, "", _DASH) if mode == PLAIN else (
        _three(cell.ratio), _interval(cell.ratio), _three(cell.e2e)
    )  # fmt: skip
    left = f"{group[:12]:<13}{_shown(mode):<10}{_speed(cell.tok_s):>6} {ratio:>6} {interval:>14}"
    right = f"{_two(cell.tokens_per_round):>7} {_percent(cell.acceptance):>5} {_ms(cell.ttft_s):>7} {e2e:>5}"
    counts = ", ".join(f"{n} {word}" for n, word in ((cell.failed, "failed"), (cell.marked, "marked")) if n)
    return [f"{left} {right}", *([f"{'':<25}{counts} of {cell.runs}"] if counts else [])]


def _warm_row(group: str, mode: str, cell: Cell) -> list[str]:
    warm = cell.warm
    left = f"{group[:12]:<13}{_shown(mode):<10}"
    if warm is None:
        return [f"{left}{_DASH:>6}"]
    ratio, interval = (_DASH, "") if mode == PLAIN else (_three(warm.ratio), _interval(warm.ratio))
    right = f"{_two(warm.tokens_per_round):>7} {_percent(warm.acceptance):>5} {_ms(warm.ttft_s):>7}"
    failed = [f"{'':<25}{warm.failed} failed of {warm.runs}"] if warm.failed else []
    return [f"{left}{_speed(warm.tok_s):>6} {ratio:>6} {interval:>14} {right}", *failed]


def _means(report: BenchReport) -> list[str]:
    lines = []
    n_all = len(report.cells)
    loops = any(text.loops for text in report.texts.values())
    for mode, mean in _in_order(report.means):
        if mode == PLAIN:
            continue
        where = f"{mean.groups} of {n_all} groups"
        ratio = f"{_three(mean.ratio):>11} {_interval(mean.ratio):>14}"
        lines.append(f"  {_shown(mode):<10} {where:<14}{ratio} {_three(mean.e2e):>20}")
        if loops and mode != PLAIN_AGAIN:
            where = f"without loops, {mean.groups_varied} of {n_all}"
            lines.append(f"    {where:<23}{_three(mean.varied):>11} {_interval(mean.varied):>14}")
    return lines


def _ceiling(report: BenchReport) -> list[str]:
    if report.ceiling is None:
        return []
    lines = []
    head = "".join(f"{word:>8}" for word in ("none", "wrong", "short", "long", "python"))
    for mode, gaps in report.ceiling.gaps.items():
        lines.append(f"{_shown(mode)} against the oracle: share of its speed, ms a token lost by reason")
        lines.append(f"{'group':<13}{'share':>6} {'95 % interval':>14}{head}{'out':>5}")
        for group, gap in gaps.items():
            lost = "".join(f"{gap.lost_ms_token[reason]:>8.2f}" for reason in LOSSES) if gap.tokens else f"{'':>40}"
            out = str(gap.pairs_left_out or "")
            lines.append(f"{group[:12]:<13}{_three(gap.share):>6} {_interval(gap.share):>14}{lost}{out:>5}")
        share, n_groups = report.ceiling.means[mode]
        lines += [f"{f'mean of {n_groups}':<13}{_three(share):>6} {_interval(share):>14}", ""]
    about = (
        "Lost in rounds that ended as nothing more was proposed (none), the next guess was wrong, or right guesses were"
        " not verified (short); in rejected rows (long); outside the passes (python). out: failed, marked, or another "
        "text than the oracle's."
    )
    return [*lines, *textwrap.wrap(about, _WIDTH)]


def _footprints(report: BenchReport) -> list[str]:
    """By mode what the runs took beside time, as far as sensors say, and how many do not count."""
    means = _in_order(report.means)
    found = [mean.footprint for _, mean in means]
    columns = {
        "resident": [f"{f.rss_bytes / 1e6:.0f} MB" if f.rss_bytes is not None else _DASH for f in found],
        "J/token": [f"{f.j_token:.3f}" if f.j_token is not None else _DASH for f in found],
        "hottest": [f"{f.temp_c:.0f} °C" if f.temp_c is not None else _DASH for f in found],
        "clock cap": [_two(f.freq_cap) for f in found],
        "others": [_two(f.busy_others) for f in found],
    }
    columns = {name: values for name, values in columns.items() if set(values) != {_DASH}}
    if any(mean.failed or mean.marked for _, mean in means):
        columns["marked"] = [f"{mean.marked} of {mean.runs}" for _, mean in means]
        columns["failed"] = [f"{mean.failed} of {mean.runs}" for _, mean in means]
    if not columns:
        return []
    lines = [f"{'mode':<10}" + "".join(f"{name:>10}" for name in columns)]
    for index, (mode, _) in enumerate(means):
        lines.append(f"{_shown(mode):<10}" + "".join(f"{values[index]:>10}" for values in columns.values()))
    return lines


def _notes(report: BenchReport) -> list[str]:
    lines = []
    if report.record.partial:
        lines.append("PARTIAL: interrupted; the numbers are of the runs that were finished.")
    noise = report.means[PLAIN_AGAIN].ratio if PLAIN_AGAIN in report.means else Ratio()
    if noise.value is not None and abs(noise.value - 1.0) > _QUIET:
        lines.append(f"NOT QUIET: plain against itself is {noise.value:.3f}; measure again when nothing else runs.")
    lines += [*_marked(report), *_repetitive(report)]
    for group, modes in report.cells.items():
        for mode, cell in modes.items():
            for reason, count in cell.off_reasons.items():
                lines.append(f"{group}, {mode}: drafting was off in {count} of {cell.runs} runs: {reason}")
    failed = [run for run in report.record.runs if run.error is not None]
    lines.extend(f"FAILED {run.mode} on {run.question_id} ({run.group}): {run.error}" for run in failed[:5])
    if len(failed) > 5:
        lines.append(f"... and {len(failed) - 5} more failed runs, all in the JSON.")
    short = [
        g for g, modes in report.cells.items()
        if PLAIN in modes and modes[PLAIN].pairs == 0 and modes[PLAIN].failed < modes[PLAIN].runs
    ]  # fmt: skip
    if short:
        lines.append(f"No decode ratio, as the answers have one token: {', '.join(short)}. See e2e.")
    lines.extend(_difference_lines(report))
    return lines


def _marked(report: BenchReport) -> list[str]:
    marked = [run for run in report.record.runs if run.mark is not None]
    if not marked:
        return []
    counts = ", ".join(f"{n} of {_shown(mode)}" for mode, n in Counter(run.mode for run in marked).items())
    first = marked[0]
    text = (
        f"MARKED, and in no ratio, as the machine was not as beside plain's run: {counts}. "
        f"The first, {first.question_id} {_shown(first.mode)}: {first.mark}."
    )
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ")


def _repetitive(report: BenchReport) -> list[str]:
    loops = {group: text for group, text in report.texts.items() if text.loops or text.repetitive}
    if not loops:
        return []
    lines = ["Repetitive answers (under half of their 4-grams distinct):"]
    for group, text in loops.items():
        share = f"{100 * text.distinct:.0f} % distinct" if text.distinct is not None else ""
        rest = [
            f"{_shown(mode)} {_three(cell.ratio_varied)}"
            for mode, cell in _in_order(report.cells[group])
            if mode not in {PLAIN, PLAIN_AGAIN}
        ]
        line = f"{group}: {len(text.loops)} of {text.answers} ({share}); without them {', '.join(rest)}"
        lines += textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _difference_lines(report: BenchReport) -> list[str]:
    if not report.differences:
        n_other = sum(run.mode != PLAIN and run.error is None and not run.warm for run in report.record.runs)
        return [f"Texts: all {n_other} answers equal plain's."] if n_other else []
    lines = [f"Texts that differ from plain's ({len(report.differences)}):"]
    for item in report.differences[:20]:
        margin = f"{item.margin:.4f}" if item.margin is not None else "unknown"
        rounds = f"{len(item.rounds)} round" + ("s" if len(item.rounds) > 1 else "")
        tokens = f"{_token(item.plain_token)} -> {_token(item.mode_token)}"
        lines.append(f"  {item.question_id} {item.mode}, token {item.position}: {tokens}, margin {margin}, {rounds}")
    if len(report.differences) > 20:
        lines.append(f"  ... and {len(report.differences) - 20} more, all in the JSON")
    if report.deviation is not None:
        allowed = f"a certified deviation of {report.deviation:.2f} logits"
        known = [item for item in report.differences if item.margin is not None]
        bad = report.unexplained
        lines.append(
            f"NOT EXPLAINED by {allowed}: {', '.join(f'{item.question_id} {item.mode}' for item in bad)}."
            if bad
            else f"All {len(known)} known margins are within {allowed}."
        )
    return lines


def _in_order(by_mode: Mapping[str, _T]) -> list[tuple[str, _T]]:
    """Plain first, the arm that shows the noise last."""
    return sorted(by_mode.items(), key=lambda item: (item[0] != PLAIN, item[0] == PLAIN_AGAIN))


def _shown(mode: str) -> str:
    return "(noise)" if mode == PLAIN_AGAIN else mode[:9]


def _three(ratio: Ratio) -> str:
    return _DASH if ratio.value is None else f"{ratio.value:.3f}"


def _two(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}..{ratio.high:.3f}"


def _speed(tok_s: float | None) -> str:
    return _DASH if tok_s is None else f"{tok_s:.{0 if tok_s >= 1000 else 1}f}"


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{100 * share:.0f} %"


def _ms(seconds: float | None) -> str:
    return _DASH if seconds is None else f"{1000 * seconds:.0f} ms"


def _token(token: int | None) -> str:
    return "end" if token is None else str(token)
