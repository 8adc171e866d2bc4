"""What the parts of the page are made of, reading a report's data without trusting its shape, and writing values.

Unknown is a dash.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.bench.charts import Spread
from edgespec.bench.modes import ORACLE, PLAIN, PLAIN_AGAIN

Data = Mapping[str, Any]

DASH = "–"
ALL = "all groups"
_AUTO = "auto"
_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")
"""Marks that turn the text around them: a name must not rewrite what stands beside it. Source: Unicode UAX #9."""
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. `texts` are the columns that are no numbers; the first column names the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page; `svg` is a finished element, all else is text that the template escapes."""

    key: str
    title: str
    texts: Sequence[str] = ()
    svg: str | None = None
    tables: Sequence[Table] = ()


def items(found: object) -> Data:
    """What was found if it is a mapping, else an empty one."""
    return found if isinstance(found, Mapping) else {}


def many(found: object) -> Sequence[Any]:
    """What was found if it is a list, else an empty one."""
    return found if isinstance(found, list | tuple) else ()


def number(found: object) -> float | None:
    """A finite number, or None."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def text(found: object) -> str:
    """As one line for a page: characters that are not there to be seen are replaced, very long texts cut."""
    raw = str(found)
    raw = raw if len(raw) <= _LONGEST else raw[: _LONGEST - 1] + "…"
    return "".join(
        "\ufffd" if unicodedata.category(char) in _HIDDEN or char in _BIDI else char for char in raw.replace("\n", " ")
    )


def drafting_modes(report: Data) -> list[str]:
    """Modes that draft, in the order in which they were asked for."""
    asked = [str(mode) for mode in many(items(report.get("settings")).get("modes"))]
    seen = [*items(report.get("geomean")), *(mode for cells in groups(report).values() for mode in cells)]
    return [mode for mode in dict.fromkeys([*asked, *seen]) if mode not in {PLAIN, PLAIN_AGAIN}]


def main_mode(report: Data) -> str:
    """The mode that a user would have: auto, or else the first that drafts without knowing the text."""
    drafting = [mode for mode in drafting_modes(report) if mode != ORACLE]
    return _AUTO if _AUTO in drafting else next(iter(drafting), _AUTO)


def groups(report: Data) -> dict[str, Data]:
    """Cells by group, then by mode."""
    return {str(group): items(cells) for group, cells in items(report.get("groups")).items()}


def spread(cell: object) -> Spread:
    """A cell's ratio and its interval."""
    found = items(cell)
    return Spread(number(found.get("ratio")), number(found.get("ratio_low")), number(found.get("ratio_high")))


def by_width(found: object) -> dict[int, float]:
    """Numbers by a whole one, whose key is a text after a trip through JSON; others are left out."""
    pairs = [(str(key), number(value)) for key, value in items(found).items()]
    return {int(key): value for key, value in pairs if key.isascii() and key.isdigit() and value is not None}


def summed(found: Iterable[object]) -> dict[int, int]:
    """Counts by width, added up, in order of width."""
    total: dict[int, int] = {}
    for widths in found:
        for width, count in by_width(widths).items():
            total[width] = total.get(width, 0) + int(count)
    return dict(sorted(total.items()))


def flat(found: Data, prefix: str = "") -> list[tuple[str, str]]:
    """Names and values of nested data, a line each; lists in one line."""
    lines: list[tuple[str, str]] = []
    for name, value in found.items():
        where = f"{prefix}{text(name)}"
        if isinstance(value, Mapping):
            lines.extend(flat(value, f"{where}: "))
        elif isinstance(value, list | tuple):
            lines.append((where, ", ".join(map(_value, value)) or DASH))
        else:
            lines.append((where, _value(value)))
    return lines


def spans(
    xs: Sequence[float], columns: Sequence[Sequence[float | None]], n_rows: int
) -> list[tuple[float, list[float | None]]]:
    """Values over `xs` in at most `n_rows` equal spans of it: each span's beginning and its means."""
    if not xs:
        return []
    low, high = min(xs), max(xs)
    step = (high - low) / n_rows or 1.0
    rows: dict[int, list[int]] = {}
    for index, x in enumerate(xs):
        rows.setdefault(min(n_rows - 1, int((x - low) / step)), []).append(index)
    return [(low + place * step, [_mean([column[i] for i in where]) for column in columns])
            for place, where in sorted(rows.items())]  # fmt: skip


def shown(value: float | None, digits: int) -> str:
    """With so many digits after the point."""
    return DASH if value is None else f"{value:.{digits}f}"


def brief(value: float | None) -> str:
    """To three digits."""
    return DASH if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(value: float | None) -> str:
    """A share of 1."""
    return DASH if value is None else f"{100 * value:.0f} %"


def times(ratio: float) -> str:
    """A ratio in a sentence: a third digit where two would hide whether it is above 1."""
    return f"{ratio:.3f}" if abs(ratio - 1.0) < 0.05 else f"{ratio:.2f}"


def interval(found: Spread) -> str:
    """The interval of a ratio."""
    return DASH if found.low is None or found.high is None else f"{found.low:.3f} to {found.high:.3f}"


def _value(found: object) -> str:
    if found is None:
        return DASH
    if isinstance(found, bool):
        return "yes" if found else "no"
    return f"{found:.4g}" if isinstance(found, float) else text(found)


def _mean(values: Sequence[float | None]) -> float | None:
    some = [value for value in values if value is not None]
    return math.fsum(some) / len(some) if some else None
