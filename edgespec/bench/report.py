"""What was measured, as JSON and as a table of 80 columns. Computes nothing that is not in the runs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from edgespec.bench.compare import REPETITIVE, Difference, distinct_share
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.ratios import Cell, Ratio, aggregate, geomean
from edgespec.bench.runner import Record, Run
from edgespec.errors import ConfigError

SCHEMA = 1
_DASH = "–"
_QUIET = 0.05
"""Plain decoding further than this from itself: the machine was not quiet, and no ratio of it is to be trusted."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Texts:
    """How repetitive plain's answers of a group were."""

    answers: int
    distinct: float | None
    """Share of distinct 4-grams."""

    @property
    def repetitive(self) -> bool:
        """Whether these answers are loops."""
        return self.distinct is not None and self.distinct < REPETITIVE


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A finished (or interrupted) benchmark."""

    record: Record
    cells: Mapping[str, Mapping[str, Cell]]
    means: Mapping[str, tuple[Ratio, Ratio, int]]
    """By mode: geometric mean over groups of the decode ratio and of the end-to-end ratio, and how many groups."""
    texts: Mapping[str, Texts]
    differences: Sequence[Difference] = ()
    stamp: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    deviation: float | None = None
    """By how much a logit may differ between two ways of computing it, as certified; None: not certified."""

    @property
    def unexplained(self) -> list[Difference]:
        """Differences by more than the certified deviation can do, moving both tokens against each other."""
        if self.deviation is None:
            return []
        return [item for item in self.differences if item.margin is not None and item.margin > 2 * self.deviation]


def build(
    record: Record,
    *,
    seed: int = 0,
    differences: Sequence[Difference] = (),
    stamp: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    deviation: float | None = None,
) -> BenchReport:
    """Fold the runs into a report; `seed` is that of the resampling."""
    cells = aggregate(record.runs, seed)
    modes = list(dict.fromkeys(mode for group in cells.values() for mode in group))
    means: dict[str, tuple[Ratio, Ratio, int]] = {}
    for mode in modes:
        mine = [group[mode] for group in cells.values() if mode in group]
        n_groups = sum(cell.ratio.value is not None for cell in mine)
        means[mode] = (geomean([cell.ratio for cell in mine]), geomean([cell.e2e for cell in mine]), n_groups)
    return BenchReport(record, cells, means, _texts(record.runs), differences, stamp or {}, settings or {}, deviation)


def to_json(report: BenchReport) -> dict[str, object]:
    """The report as plain data; the shape is part of what `edgespec bench --json` promises."""
    return {
        "schema": SCHEMA,
        "partial": report.record.partial,
        "stamp": dict(report.stamp),
        "settings": dict(report.settings),
        "groups": {
            group: {mode: _cell_json(cell) for mode, cell in modes.items()} for group, modes in report.cells.items()
        },
        "geomean": {
            mode: {**_ratio_json(decode, "ratio"), **_ratio_json(e2e, "e2e_ratio"), "groups": n_groups}
            for mode, (decode, e2e, n_groups) in report.means.items()
        },
        "texts": {
            group: {"answers": text.answers, "distinct_4grams": text.distinct, "repetitive": text.repetitive}
            for group, text in report.texts.items()
        },
        "differences": [asdict(item) for item in report.differences],
        "certified_deviation": report.deviation,
        "unexplained_differences": len(report.unexplained) if report.deviation is not None else None,
        "failures": [
            {"question_id": run.question_id, "group": run.group, "mode": run.mode, "round": run.round,
             "error": run.error}
            for run in report.record.runs if run.error is not None
        ],
        "runs": [asdict(run) for run in report.record.runs],
    }  # fmt: skip


def save_json(report: BenchReport, path: Path) -> None:
    """Write the report; the file is whole or not there.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps(to_json(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def table(report: BenchReport) -> str:
    """The report for a terminal of 80 columns."""
    head = f"{'group':<13}{'mode':<10}{'tok/s':>6} {'ratio':>6} {'95 % interval':>14} {'tok/rnd':>7} {'acc.':>5}"
    lines = [f"{head} {'first':>7} {'e2e':>5}"]
    for group, modes in report.cells.items():
        for index, (mode, cell) in enumerate(_in_order(modes)):
            lines.append(_row(group if index == 0 else "", mode, cell))
    lines.append("")
    lines.append(f"geometric mean over groups{'ratio':>12} {'95 % interval':>14} {'e2e':>20}")
    for mode, (decode, e2e, n_groups) in _in_order(report.means):
        if mode != PLAIN:
            where = f"{n_groups} of {len(report.cells)} groups"
            shown = "(noise)" if mode == PLAIN_AGAIN else mode
            lines.append(f"  {shown:<10} {where:<14}{_two(decode):>11} {_interval(decode):>14} {_two(e2e):>20}")
    lines.extend(["", *_notes(report)])
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _row(group: str, mode: str, cell: Cell) -> str:
    shown = "(noise)" if mode == PLAIN_AGAIN else mode
    failed = f"  {cell.failed} failed" if cell.failed else ""
    speed = _DASH if cell.tok_s is None else f"{cell.tok_s:.{0 if cell.tok_s >= 1000 else 1}f}"
    ratio, interval, e2e = (_DASH, "", _DASH) if mode == PLAIN else (
        _two(cell.ratio), _interval(cell.ratio), _two(cell.e2e)
    )  # fmt: skip
    rounds = f"{cell.tokens_per_round:.2f}" if cell.tokens_per_round is not None else _DASH
    accepted = f"{100 * cell.acceptance:.0f} %" if cell.acceptance is not None else _DASH
    first = f"{1000 * cell.ttft_s:.0f} ms" if cell.ttft_s is not None else _DASH
    left = f"{group[:12]:<13}{shown[:9]:<10}{speed:>6} {ratio:>6} {interval:>14}"
    return f"{left} {rounds:>7} {accepted:>5} {first:>7} {e2e:>5}{failed}"


def _notes(report: BenchReport) -> list[str]:
    lines = []
    if report.record.partial:
        lines.append("PARTIAL: interrupted; the numbers are of the runs that were finished.")
    noise = report.means[PLAIN_AGAIN][0] if PLAIN_AGAIN in report.means else Ratio()
    if noise.value is not None and abs(noise.value - 1.0) > _QUIET:
        lines.append(f"NOT QUIET: plain against itself is {noise.value:.3f}; measure again when nothing else runs.")
    loops = [group for group, text in report.texts.items() if text.repetitive]
    if loops:
        lines.append(f"Repetitive answers (under half of their 4-grams distinct): {', '.join(loops)}.")
    for group, modes in report.cells.items():
        for mode, cell in modes.items():
            for reason, count in cell.off_reasons.items():
                lines.append(f"{group}, {mode}: drafting was off in {count} of {cell.runs} runs: {reason}")
    failed = [run for run in report.record.runs if run.error is not None]
    lines.extend(f"FAILED {run.mode} on {run.question_id} ({run.group}): {run.error}" for run in failed[:5])
    if len(failed) > 5:
        lines.append(f"... and {len(failed) - 5} more failed runs, all in the JSON.")
    short = [g for g, modes in report.cells.items() if PLAIN in modes and modes[PLAIN].pairs == 0]
    if short:
        lines.append(f"No decode ratio, as the answers have one token: {', '.join(short)}. See e2e.")
    lines.extend(_difference_lines(report))
    return lines


def _difference_lines(report: BenchReport) -> list[str]:
    if not report.differences:
        n_other = sum(run.mode != PLAIN and run.error is None for run in report.record.runs)
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


def _cell_json(cell: Cell) -> dict[str, object]:
    plain = {name: getattr(cell, name) for name in Cell.__slots__ if name not in {"ratio", "e2e"}}
    plain["widths"] = {str(width): count for width, count in cell.widths.items()}
    return {**plain, **_ratio_json(cell.ratio, "ratio"), **_ratio_json(cell.e2e, "e2e_ratio")}


def _ratio_json(ratio: Ratio, name: str) -> dict[str, float | None]:
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _texts(runs: Sequence[Run]) -> dict[str, Texts]:
    """By group; equal answers of several rounds count once."""
    answers: dict[str, dict[str, tuple[int, ...]]] = {}
    for run in runs:
        if run.mode == PLAIN and run.error is None:
            answers.setdefault(run.group, {}).setdefault(run.question_id, run.ids)
    return {group: Texts(len(found), distinct_share(list(found.values()))) for group, found in answers.items()}


def _in_order(by_mode: Mapping[str, _T]) -> list[tuple[str, _T]]:
    """Plain first, the arm that shows the noise last."""
    return sorted(by_mode.items(), key=lambda item: (item[0] != PLAIN, item[0] == PLAIN_AGAIN))


def _two(ratio: Ratio) -> str:
    return _DASH if ratio.value is None else f"{ratio.value:.3f}"


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}..{ratio.high:.3f}"


def _token(token: int | None) -> str:
    return "end" if token is None else str(token)
