"""The parts of the page that are lists: the ceiling, several at once, memory and energy, texts, what does not count.

A part for which the report has no data is None.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.bench.modes import PLAIN
from edgespec.bench.page_data import (
    ALL,
    DASH,
    Data,
    Section,
    Table,
    brief,
    drafting_modes,
    flat,
    groups,
    interval,
    items,
    many,
    number,
    percent,
    shown,
    spread,
    text,
)

_LOSSES = {"no_proposal": "no guess", "wrong": "wrong", "too_short": "too short", "too_long": "too long",
           "python": "outside"}  # fmt: skip
_N_ROWS = 40
"""Most rows of a list of cases; the rest is in the JSON."""


def ceiling(report: Data) -> Section | None:
    """The share of what a drafter that knows the text would gain, and where the rest is lost."""
    rows = [
        (
            text(group),
            text(mode),
            percent(number(items(gap).get("share"))),
            *(shown(number(items(items(gap).get("lost_ms_token")).get(name)), 2) for name in _LOSSES),
        )
        for mode, found in items(report.get("ceiling")).items()
        for group, gap in (*items(items(found).get("by_group")).items(), (ALL, found))
    ]
    if not rows:
        return None
    note = (
        "Its speed against a drafter that knows the text and drafts as long as pays; then where the rest is lost, "
        "in milliseconds for each token: no guess, a wrong one, right guesses that were not checked, wrong ones that "
        "were, and time outside the passes."
    )
    table = Table("Share of the ceiling", ("group", "mode", "share", *_LOSSES.values()), rows, frozenset({1}))
    return Section("ceiling", "How much of the possible it reaches", (note,), tables=(table,))


def concurrency(report: Data) -> Section | None:
    """Several answers at once."""
    data = items(report.get("concurrency"))
    cells = items(data.get("modes"))
    if not cells:
        return None
    rows = [
        (
            text(mode),
            shown(number(items(cell).get("tok_s")), 1),
            shown(None if mode == PLAIN else number(items(cell).get("ratio")), 3),
            DASH if mode == PLAIN else interval(spread(cell)),
            percent(number(items(cell).get("acceptance"))),
            shown(number(items(cell).get("slowest_over_mean")), 2),
        )
        for mode, cell in cells.items()
    ]
    head = ("mode", "tok/s", "ratio", "95 % interval", "right", "slowest/mean")
    title = f"{brief(number(data.get('sessions')))} answers at once"
    note = "In the same passes of the model; tok/s of all together. Slowest/mean: 1 where all answers are equally fast."
    return Section("concurrency", title, (note,), tables=(Table(title, head, rows),))


def texts(report: Data) -> Section | None:
    """Where answers differ from plain's."""
    if "differences" not in report:
        return None
    found = [items(item) for item in many(report["differences"])]
    title = "Texts"
    if not found:
        n = sum(1 for run in map(items, many(report.get("runs"))) if run.get("mode") != PLAIN and not run.get("error"))
        return Section("texts", title, (f"All {n} other answers equal those of plain decoding.",))
    rows = [
        (
            text(item.get("question_id")),
            text(item.get("mode")),
            text(item.get("position")),
            shown(number(item.get("margin")), 4),
            text(item.get("note") or DASH),
        )
        for item in found[:_N_ROWS]
    ]
    deviation = number(report.get("certified_deviation"))
    certified = f" Certified is a deviation of {deviation:.2f} logits." if deviation is not None else ""
    note = (
        f"Answers that differ from those of plain decoding: {len(found)}. The margin says by how many logits the model "
        f"preferred plain's token: near 0, rounding decides.{certified}"
    )
    head = ("question", "mode", "at token", "margin", "note")
    table = Table(f"Differences{_first_of(found)}", head, rows, frozenset({1, 4}))
    return Section("texts", title, (note,), tables=(table,))


def left_out(report: Data) -> Section | None:
    """What failed, what was marked and gave no ratio, where drafting was off, and why."""
    rows = [("failed", run, run.get("error")) for run in map(items, many(report.get("failures")))]
    rows += [("no ratio", run, run.get("reason")) for run in map(items, many(report.get("marked")))]
    for name in ("sustain", "concurrency"):
        rows += [("failed", run, run.get("error")) for run in map(items, many(items(report.get(name)).get("failures")))]
    problem = items(report.get("concurrency")).get("problem")
    rows += [("failed", {"question_id": "several at once"}, problem)] if problem else []
    rows += [
        ("drafting off", {"group": group, "mode": mode}, f"{reason} ({count} runs)")
        for group, cells in groups(report).items()
        for mode, cell in cells.items()
        for reason, count in items(items(cell).get("off_reasons")).items()
    ]
    if not rows:
        return None
    cells = [
        (what, text(run.get("mode", DASH)), text(run.get("question_id") or run.get("group") or DASH), text(why))
        for what, run, why in rows[:_N_ROWS]
    ]
    table = Table(f"Left out{_first_of(rows)}", ("what", "mode", "where", "why"), cells, frozenset({1, 2, 3}))
    return Section("left-out", "What failed or does not count", tables=(table,))


def stamp(report: Data) -> Section | None:
    """On what machine and with which settings."""
    tables = [
        Table(caption, ("what", "value"), rows, frozenset({1}))
        for caption, name in (("Machine", "stamp"), ("Settings", "settings"))
        if (rows := flat(items(report.get(name))))
    ]
    return Section("stamp", "Machine and settings", tables=tables) if tables else None


def footprint(report: Data) -> Section | None:
    """First token, memory, energy and the machine, by mode."""
    means = items(report.get("geomean"))
    rows = []
    for mode in (PLAIN, *drafting_modes(report)):
        took = items(items(means.get(mode)).get("footprint"))
        memory = number(took.get("rss_bytes"))
        row = (
            shown(None if memory is None else memory / 1e6, 0),
            shown(number(took.get("j_token")), 3),
            shown(number(took.get("temp_c")), 0),
            percent(number(took.get("freq_cap"))),
            shown(number(took.get("busy_others")), 2),
        )
        if set(row) != {DASH}:
            rows.append((text(mode), *row))
    if not rows:
        return None
    note = "Highest memory and temperature, lowest limit of the clock, mean of the cores that other programs took."
    head = ("mode", "MB", "joules a token", "°C", "clock", "others")
    return Section("footprint", "Memory, energy, heat", (note,), tables=(Table("By mode", head, rows),))


def _first_of(found: Sequence[object]) -> str:
    return f", the first {_N_ROWS} of {len(found)}" if len(found) > _N_ROWS else ""
