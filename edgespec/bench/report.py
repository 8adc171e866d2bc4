"""What was measured, and as JSON. Computes nothing that is not in the runs; `bench.table` shows it to people."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from edgespec.bench import concurrent, sustain
from edgespec.bench.ceiling import Ceiling, ceiling
from edgespec.bench.compare import REPETITIVE, Difference, distinct_share, loops
from edgespec.bench.marks import mark
from edgespec.bench.modes import PLAIN
from edgespec.bench.ratios import Cell, Footprint, Ratio, aggregate, footprint, geomean
from edgespec.bench.runner import Record, Run
from edgespec.errors import ConfigError

SCHEMA = 1
ABOUT = {
    "units": "_s are seconds, _ms milliseconds, _c degrees Celsius, _w watts, _j joules; null is unknown",
    "groups": "by group and mode, from an empty KV cache, sums over the runs that did not fail; `warm`: the same "
    "question again in the same session, null without --warm",
    "ratio": "plain's decode time over the mode's, above 1 is faster; low and high hold 95 % of the resampled values; "
    "plain2 is plain a second time and shows the noise",
    "ratio_without_repetitive": "the same without the questions to which plain's answer is a loop",
    "e2e_ratio": "the ratio of whole answers, prompt included",
    "accepted_by_position": "how many drafts had their first, second, ... token accepted",
    "widths": "rows of a pass to how many passes had so many",
    "footprint": "resident memory at the end of a run, joules per token, the state of the machine before and after",
    "marked": "runs that give no ratio, as heat or other programs were not as beside plain's run of the same pair",
    "ceiling": "by mode: its speed over that of the oracle, a drafter that knows the text, under the same controller; "
    "lost_ms_token splits the difference, in milliseconds per decoded token and without rest: no_proposal (nothing "
    "more was proposed), wrong (the next proposed token was wrong), too_short (right tokens were proposed and not "
    "verified), too_long (rows that were rejected), python (outside the passes)",
    "pass_s": "seconds of a pass by rows at a short context, as the engine prices them",
    "sustain": "the modes by turns in short answers for some minutes, after the questions, in blocks of seconds; a "
    "block in which no answer of a mode ended has none of it",
    "concurrency": "so many answers at once in the same passes; tok_s is that of all together, from when every prompt "
    "was read",
    "runs": "one answer each, in the order they were made; at_s counts from the beginning of the first",
}
"""What the keys of the JSON mean."""


@dataclass(frozen=True, slots=True)
class Texts:
    """How repetitive plain's answers of a group were."""

    answers: int
    distinct: float | None
    """Share of distinct 4-grams."""
    loops: tuple[str, ...] = ()
    """Questions whose answers are repetitive in themselves."""

    @property
    def repetitive(self) -> bool:
        """Whether the answers of this group are loops, taken together."""
        return self.distinct is not None and self.distinct < REPETITIVE


@dataclass(frozen=True, slots=True)
class Mean:
    """A mode over all groups: geometric means, and over how many groups."""

    ratio: Ratio
    e2e: Ratio
    groups: int
    varied: Ratio
    """Of the decode ratio without repetitive answers."""
    groups_varied: int
    runs: int
    failed: int
    marked: int
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A finished (or interrupted) benchmark."""

    record: Record
    cells: Mapping[str, Mapping[str, Cell]]
    means: Mapping[str, Mean]
    texts: Mapping[str, Texts]
    differences: Sequence[Difference] = ()
    stamp: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    deviation: float | None = None
    """By how much a logit may differ between two ways of computing it, as certified; None: not certified."""
    ceiling: Ceiling | None = None
    pass_s: Mapping[int, float] | None = None
    """Seconds of a pass by rows, as the engine prices them."""
    sustained: sustain.Sustained | None = None
    concurrent: concurrent.Concurrent | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended any part of it."""
        return any(part is not None and part.partial for part in (self.record, self.sustained, self.concurrent))

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
    pass_s: Mapping[int, float] | None = None,
) -> BenchReport:
    """Fold the runs into a report; `seed` is that of the resampling. Marks the runs that give no ratio."""
    record = replace(record, runs=with_marks(record.runs))
    cells = aggregate(record.runs, seed)
    modes = list(dict.fromkeys(mode for group in cells.values() for mode in group))
    means = {mode: _mean([group[mode] for group in cells.values() if mode in group], record, mode) for mode in modes}
    return BenchReport(
        record, cells, means, _texts(record.runs), differences, stamp or {}, settings or {}, deviation,
        ceiling(record, seed), pass_s,
    )  # fmt: skip


def with_marks(runs: Sequence[Run]) -> list[Run]:
    """The runs, those marked that were made in another state of the machine than plain's of the same pair."""
    plain = {(run.question_id, run.round, run.warm): run for run in runs if run.mode == PLAIN and run.error is None}
    marked = []
    for run in runs:
        base = plain.get((run.question_id, run.round, run.warm))
        fair = base is None or base is run or run.error is not None
        marked.append(run if fair or base is None else replace(run, mark=mark(run.beside, base.beside)))
    return marked


def to_json(report: BenchReport) -> dict[str, object]:
    """The report as plain data; the shape is part of what `edgespec bench --json` promises. Keys are only added."""
    return {
        "schema": SCHEMA,
        "about": ABOUT,
        "partial": report.record.partial,
        "stamp": dict(report.stamp),
        "settings": dict(report.settings),
        "groups": {
            group: {mode: _cell_json(cell) for mode, cell in modes.items()} for group, modes in report.cells.items()
        },
        "geomean": {
            mode: {
                **_ratio_json(mean.ratio, "ratio"), **_ratio_json(mean.e2e, "e2e_ratio"), "groups": mean.groups,
                **_ratio_json(mean.varied, "ratio_without_repetitive"),
                "groups_without_repetitive": mean.groups_varied, "runs": mean.runs, "failed": mean.failed,
                "marked": mean.marked, "footprint": asdict(mean.footprint),
            }
            for mode, mean in report.means.items()
        },
        "texts": {
            group: {
                "answers": text.answers, "distinct_4grams": text.distinct, "repetitive": text.repetitive,
                "repetitive_answers": list(text.loops),
            }
            for group, text in report.texts.items()
        },
        "ceiling": _ceiling_json(report.ceiling) if report.ceiling is not None else None,
        "pass_s": {str(width): s for width, s in report.pass_s.items()} if report.pass_s is not None else None,
        "sustain": sustain.to_json(report.sustained) if report.sustained is not None else None,
        "concurrency": concurrent.to_json(report.concurrent) if report.concurrent is not None else None,
        "differences": [asdict(item) for item in report.differences],
        "certified_deviation": report.deviation,
        "unexplained_differences": len(report.unexplained) if report.deviation is not None else None,
        "failures": [
            {**_which(run), "error": run.error} for run in report.record.runs if run.error is not None
        ],
        "marked": [{**_which(run), "reason": run.mark} for run in report.record.runs if run.mark is not None],
        "runs": _runs_json(report.record.runs),
    }  # fmt: skip


def save_json(report: BenchReport, path: Path) -> None:
    """Write the report; the file is whole or not there.

    Raises:
        ConfigError: it cannot be written.
    """
    write_whole(json.dumps(to_json(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def write_whole(text: str, path: Path) -> None:
    """Write a file that is whole or not there.

    Raises:
        ConfigError: it cannot be written.
    """
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


def _mean(cells: Sequence[Cell], record: Record, mode: str) -> Mean:
    ratios, varied = [cell.ratio for cell in cells], [cell.ratio_varied for cell in cells]
    good = [run for run in record.runs if run.mode == mode and not run.warm and run.error is None]
    return Mean(
        geomean(ratios),
        geomean([cell.e2e for cell in cells]),
        sum(ratio.value is not None for ratio in ratios),
        geomean(varied),
        sum(ratio.value is not None for ratio in varied),
        sum(cell.runs for cell in cells),
        sum(cell.failed for cell in cells),
        sum(cell.marked for cell in cells),
        footprint(good),
    )


def _cell_json(cell: Cell) -> dict[str, object]:
    folded = {"ratio", "e2e", "ratio_varied", "footprint", "warm"}
    plain = {name: getattr(cell, name) for name in Cell.__slots__ if name not in folded}
    plain["widths"] = {str(width): count for width, count in cell.widths.items()}
    warm = cell.warm
    if warm is not None:
        rest = {name: getattr(warm, name) for name in type(warm).__slots__ if name != "ratio"}
        plain["warm"] = {**rest, **_ratio_json(warm.ratio, "ratio")}
    return {
        "warm": None, **plain, **_ratio_json(cell.ratio, "ratio"), **_ratio_json(cell.e2e, "e2e_ratio"),
        **_ratio_json(cell.ratio_varied, "ratio_without_repetitive"), "footprint": asdict(cell.footprint),
    }  # fmt: skip


def _ratio_json(ratio: Ratio, name: str) -> dict[str, float | None]:
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def _ceiling_json(found: Ceiling) -> dict[str, object]:
    return {
        mode: {
            **_ratio_json(found.means[mode][0], "share"), "groups": found.means[mode][1],
            "by_group": {
                group: {
                    **_ratio_json(gap.share, "share"), "pairs": gap.pairs, "pairs_left_out": gap.pairs_left_out,
                    "tokens": gap.tokens, "lost_ms_token": gap.lost_ms_token, "rounds": dict(gap.rounds),
                    "rejected": gap.rejected, "unverified": gap.unverified,
                }
                for group, gap in gaps.items()
            },
        }
        for mode, gaps in found.gaps.items()
    }  # fmt: skip


def _runs_json(runs: Sequence[Run]) -> list[dict[str, object]]:
    began_s = min((run.at_s for run in runs if run.at_s is not None), default=0.0)
    return [
        {**asdict(run), "at_s": None if run.at_s is None else run.at_s - began_s, "energy_j": run.energy_j}
        for run in runs
    ]


def _which(run: Run) -> dict[str, object]:
    return {"question_id": run.question_id, "group": run.group, "mode": run.mode, "round": run.round, "warm": run.warm}


def _texts(runs: Sequence[Run]) -> dict[str, Texts]:
    """By group; equal answers of several rounds count once."""
    answers: dict[str, dict[str, tuple[int, ...]]] = {}
    for run in runs:
        if run.mode == PLAIN and run.error is None and not run.warm:
            answers.setdefault(run.group, {}).setdefault(run.question_id, run.ids)
    looping = loops(runs)
    return {
        group: Texts(len(found), distinct_share(list(found.values())), tuple(q for q in found if q in looping))
        for group, found in answers.items()
    }
