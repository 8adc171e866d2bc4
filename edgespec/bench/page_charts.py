"""The parts of the page with a chart: from the report's data to a picture, a table that says the same, and a few words.

A part for which the report has no data is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.bench import charts
from edgespec.bench.charts import Line, Spread, Words
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.page_data import (
    ALL,
    DASH,
    Data,
    Section,
    Table,
    brief,
    by_width,
    drafting_modes,
    groups,
    interval,
    items,
    main_mode,
    many,
    number,
    percent,
    shown,
    spans,
    spread,
    summed,
    text,
)

_N_SPANS = 12
"""Rows of a table that stands for a chart over time."""


def ratios(report: Data) -> Section | None:
    """Ratios by group and mode, against 1 and the noise."""
    modes = drafting_modes(report)
    rows = {**{text(group): cells for group, cells in groups(report).items()}, ALL: items(report.get("geomean"))}
    points = {row: {text(mode): spread(cells.get(mode)) for mode in modes} for row, cells in rows.items()}
    if not any(point.value for found in points.values() for point in found.values()):
        return None
    told = "; ".join(f"{mode} {shown(point.value, 3)}" for mode, point in points[ALL].items())
    words = Words(
        "ratios",
        "How many times as fast as plain decoding",
        f"By group of questions and mode, against 1. In the mean over all groups: {told}.",
    )
    cells = [
        _ratio_row(row, mode, items(found[mode]))
        for row, found in rows.items()
        for mode in (PLAIN, *modes, PLAIN_AGAIN)
        if mode in found and (row, mode) != (ALL, PLAIN)
    ]
    note = (
        "Right of the line at 1, drafting is faster. A bar is the 95 % interval; the grey band is plain decoding "
        "against itself, which is what chance does on this machine."
    )
    head = ("group", "mode", "tok/s", "ratio", "95 % interval", "tokens a pass", "right")
    svg = charts.ratios(words, points, {row: spread(found.get(PLAIN_AGAIN)) for row, found in rows.items()})
    return Section("ratios", words.title, (note,), svg, (Table("Ratios", head, cells, frozenset({1})),))


def staircase(report: Data) -> Section | None:
    """What passes cost by their rows, and which the controller chose."""
    pass_s = by_width(report.get("pass_s"))
    ms = {width: 1000.0 * pass_s[width] for width in sorted(pass_s)}
    if not ms.get(1):
        return None
    mode = main_mode(report)
    chosen = summed(items(cells.get(mode)).get("widths") for cells in groups(report).values())
    total = sum(chosen.values())
    single = f" {percent(chosen.get(1, 0) / total)} of the passes had a single row." if total else ""
    words = Words(
        "stairs",
        "What a pass costs, and what was chosen",
        f"A pass of one row takes {ms[1]:.1f} milliseconds, one of {max(ms)} rows {ms[max(ms)]:.1f}.{single}",
    )
    rows = [
        (
            str(width),
            shown(ms.get(width), 2),
            shown(ms[width] / ms[1] if width in ms else None, 2),
            str(chosen.get(width, 0)),
            percent(chosen.get(width, 0) / total if total else None),
        )
        for width in sorted({*ms, *chosen})
    ]
    note = (
        "A pass checks several tokens at once for less than as many single passes cost (dotted). The circles are the "
        f"passes that mode {text(mode)} chose, larger where it did so more often."
    )
    table = Table("Cost by rows", ("rows", "milliseconds", "single passes", "chosen", "share"), rows)
    return Section("stairs", words.title, (note,), charts.staircase(words, ms, chosen), (table,))


def acceptance(report: Data) -> Section | None:
    """How often the n-th drafted token was right."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for mode in drafting_modes(report):
        cells = [items(found.get(mode)) for found in groups(report).values()]
        widths, hits = (
            summed(cell.get("widths") for cell in cells),
            [many(c.get("accepted_by_position")) for c in cells],
        )
        counts[text(mode)] = [
            (
                sum(int(number(row[place]) or 0) for row in hits if place < len(row)),
                sum(count for width, count in widths.items() if width > place + 1),
            )
            for place in range(max(widths, default=1) - 1)
        ]
    counts = {mode: found for mode, found in counts.items() if found}
    if not counts:
        return None
    lines = [
        Line(mode, range(1, len(found) + 1), [100.0 * right / n if n else None for right, n in found])
        for mode, found in counts.items()
    ]
    words = Words(
        "right",
        "How often the n-th guess was right",
        f"With mode {lines[0].name} the first drafted token was right in {shown(lines[0].ys[0], 0)} % of the drafts.",
    )
    rows = [
        (str(place + 1), *(_of(*found[place]) if place < len(found) else DASH for found in counts.values()))
        for place in range(max(map(len, counts.values())))
    ]
    note = "Of the drafts that were so long, how many had this token right, and with it all before."
    table = Table("Right guesses by position", ("position", *counts), rows)
    return Section("right", words.title, (note,), charts.acceptance(words, lines), (table,))


def timeline(report: Data) -> Section | None:
    """Speed and the machine over the run, answer by answer."""
    runs = [run for run in map(items, many(report.get("runs"))) if not run.get("warm") and number(run.get("decode_s"))]
    if not runs:
        return None
    starts = [number(run.get("at_s")) for run in runs]
    known = [start for start in starts if start is not None]
    timed = len(known) == len(runs)
    xs = [start - known[0] for start in known] if timed else [float(place) for place in range(1, len(runs) + 1)]
    speeds = [(number(run.get("decoded")) or 0.0) / run["decode_s"] for run in runs]
    modes = sorted({str(run.get("mode")) for run in runs} - {PLAIN_AGAIN}, key=lambda mode: (mode != PLAIN, mode))
    lines = [
        Line(text(mode), xs, [v if run.get("mode") == mode else None for v, run in zip(speeds, runs, strict=True)],
             base=mode == PLAIN)
        for mode in modes
    ]  # fmt: skip
    words = Words("run", "Speed over the run", f"Tokens a second of {len(runs)} answers in the order they came in.")
    after = [items(items(run.get("beside")).get("after")) for run in runs]
    return _over_time(words, xs, {"tok/s": lines}, after, "seconds" if timed else "answer", dots=True)


def sustained(report: Data) -> Section | None:
    """Speed, draft length and the machine over a long run."""
    data = items(report.get("sustain"))
    found = [items(block) for block in many(data.get("blocks"))]
    if not found:
        return None
    middle_s = (number(data.get("block_s")) or 0.0) / 2.0
    xs = [((number(block.get("at_s")) or 0.0) + middle_s) / 60.0 for block in found]
    parts = [items(block.get("modes")) for block in found]
    modes = sorted({str(mode) for part in parts for mode in part}, key=lambda mode: (mode != PLAIN, mode))

    def lines(name: str, wanted: Sequence[str]) -> list[Line]:
        return [
            Line(text(mode), xs, [number(items(part.get(mode)).get(name)) for part in parts], base=mode == PLAIN)
            for mode in wanted
        ]

    told = "; ".join(
        f"{text(mode)}: {shown(number(items(cell).get('ratio')), 3)} times as fast as plain over the whole run"
        for mode, cell in items(data.get("modes")).items()
        if mode != PLAIN
    )
    words = Words("sustained", f"Speed over {brief(number(data.get('minutes')))} min", f"{told}.")
    panels = {
        "tok/s": lines("tok_s", modes),
        "drafted a pass": lines("drafted_per_round", [mode for mode in modes if mode != PLAIN]),
    }
    return _over_time(words, xs, panels, found, "minutes", (words.text,))


def _over_time(
    words: Words,
    xs: Sequence[float],
    panels: Mapping[str, Sequence[Line]],
    readings: Sequence[Data],
    x_label: str,
    notes: Sequence[str] = (),
    *,
    dots: bool = False,
) -> Section | None:
    """A chart over `xs` of `panels` and what is known of the machine, and its table; None: nothing is known."""
    every = dict(panels)
    for label, name, scale in (("°C", "temp_c", 1.0), ("clock %", "freq_cap", 100.0), ("others", "busy_others", 1.0)):
        values = [number(reading.get(name)) for reading in readings]
        every[label] = [Line(label, xs, [None if value is None else scale * value for value in values], base=True)]
    every = {label: lines for label, lines in every.items() if any(y is not None for line in lines for y in line.ys)}
    if not every:
        return None
    columns = {
        f"{label}, {line.name}" if label in panels else label: line.ys
        for label, lines in every.items()
        for line in lines
    }
    rows = [(brief(at), *map(brief, values)) for at, values in spans(xs, list(columns.values()), _N_SPANS)]
    explained = {
        "clock %": "clock %: the highest clock that the system allows, of the highest possible.",
        "others": "others: cores' worth of time that other programs took.",
    }
    notes = (*notes, *(note for label, note in explained.items() if label in every))
    svg = charts.over_time(words, every, x_label, dots=dots)
    return Section(words.key, words.title, notes, svg, (Table(words.title, (x_label, *columns), rows),))


def _ratio_row(row: str, mode: str, cell: Data) -> tuple[str, ...]:
    point = Spread(None) if mode == PLAIN else spread(cell)
    return (
        row,
        "plain again (noise)" if mode == PLAIN_AGAIN else text(mode),
        shown(number(cell.get("tok_s")), 1),
        shown(point.value, 3),
        interval(point),
        shown(number(cell.get("tokens_per_round")), 2),
        percent(number(cell.get("acceptance"))),
    )


def _of(right: int, n: int) -> str:
    return f"{right} of {n} ({percent(right / n)})" if n else DASH
