"""Charts as SVG to be put into a page: text stays text, colours are the page's, a screen reader is told what is shown.

Knows nothing of reports: numbers come in. What matplotlib draws has stand-in colours, which become CSS variables
(`--ink`, `--grid`, `--mute`, `--c1` to `--c6`), so that one picture serves a light and a dark page.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INSTALL = "pip install 'edgespec[bench]'"
_WIDTH_IN = 4.3
"""Inches of 72 units: at the width of a phone the text is shown about as large as it is drawn."""
_COLORS = {
    "ink": "#010203", "grid": "#010204", "mute": "#010205", "c1": "#010206", "c2": "#010207", "c3": "#010208",
    "c4": "#010209", "c5": "#01020a", "c6": "#01020b",
}  # fmt: skip
"""Stand-ins that nothing else is drawn in."""
_SERIES = tuple(name for name in _COLORS if name.startswith("c"))
_LEAST_AREA = 45.0
"""In square points: a width that was chosen once is seen, too."""
_MARKERS = "sD^vPX"
"""A shape for each colour: nothing is told by colour alone."""
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "edgespec", "text.parse_math": False, "font.size": 10.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "text.color": _COLORS["ink"], "axes.labelcolor": _COLORS["ink"], "xtick.labelcolor": _COLORS["ink"],
    "ytick.labelcolor": _COLORS["ink"], "axes.edgecolor": _COLORS["mute"], "xtick.color": _COLORS["mute"],
    "ytick.color": _COLORS["mute"], "grid.color": _COLORS["grid"], "legend.frameon": False, "legend.fontsize": 9.0,
    "figure.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Words:
    """What a screen reader says of a chart."""

    key: str
    """Of the chart, unique on its page: letters only."""
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio with its interval, each None where unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time or another running number; None leaves a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    base: bool = False
    """Whether it is what the others are held against: then it has the colour of the text."""


def check_installed() -> None:
    """Find out early whether charts can be drawn, without loading what draws them.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--html needs matplotlib: {_INSTALL}")


def ratios(words: Words, rows: Mapping[str, Mapping[str, Spread]], noise: Mapping[str, Spread]) -> str:
    """Ratios to plain decoding, by label and mode, each against 1 and against what chance did to plain itself.

    Args:
        words: for the screen reader.
        rows: by label (a group, or all of them), then by mode.
        noise: by label, plain decoding against itself.
    """
    modes = list(dict.fromkeys(mode for found in rows.values() for mode in found))
    lanes = max(1, len(modes))
    with _figure(words, 0.8 + 0.09 * len(rows) * (2 + lanes)) as (figure, drawn):
        axes = figure.subplots()
        axes.axvline(1.0, color=_COLORS["ink"], linewidth=1.0)
        for place, label in enumerate(rows):
            band = noise.get(label)
            if band is not None and band.low is not None and band.high is not None:
                axes.barh(
                    place, band.high - band.low, left=band.low, height=0.84, color=_COLORS["mute"], alpha=0.28,
                    label="plain against itself" if place == 0 else None,
                )  # fmt: skip
            for lane, mode in enumerate(modes):
                spread = rows[label].get(mode, Spread(None))
                if spread.value is None:
                    continue
                at = place + (lane - (lanes - 1) / 2) * 0.8 / lanes
                color, marker = _look(lane)
                if spread.low is not None and spread.high is not None:
                    axes.plot([spread.low, spread.high], [at, at], color=color, linewidth=1.6)
                axes.plot([spread.value], [at], color=color, marker=marker, markersize=5.5)
        for lane, mode in enumerate(modes):
            color, marker = _look(lane)
            axes.plot([], [], color=color, marker=marker, linewidth=1.6, markersize=5.5, label=_short(mode))
        axes.set_yticks(range(len(rows)), [_short(label) for label in rows])
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("times as fast as plain decoding")
        _legend(figure)
    return drawn[0]


def staircase(words: Words, ms: Mapping[int, float], chosen: Mapping[int, int]) -> str:
    """Milliseconds of a pass by its rows, and the widths that were chosen, their area by how often.

    Args:
        words: for the screen reader.
        ms: by rows, as measured.
        chosen: by rows, how many passes had them.
    """
    widest = max([*ms, *chosen])
    known = dict(sorted(ms.items()))
    with _figure(words, 2.9) as (figure, drawn):
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        axes.plot(
            [1, widest], [known[1], known[1] * widest], color=_COLORS["mute"], linestyle=":",
            label="as many single passes",
        )  # fmt: skip
        axes.plot([*known], [*known.values()], color=_COLORS["c1"], marker="s", markersize=3.5, label="one pass")
        total = sum(chosen.values())
        if total:
            at = [_between(known, width) for width in chosen]
            areas = [max(_LEAST_AREA, 900.0 * count / total) for count in chosen.values()]
            axes.scatter([*chosen], at, s=areas, color=_COLORS["c2"], alpha=0.55, linewidths=1.0)
            axes.scatter([], [], s=40.0, color=_COLORS["c2"], alpha=0.55, label="chosen")
        axes.set_ylim(0.0, 1.15 * max([*known.values(), *(_between(known, width) for width in chosen)]))
        axes.set_xlim(0.0, widest + 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("rows of the pass (1 + drafted tokens)")
        axes.set_ylabel("milliseconds")
        _legend(figure)
    return drawn[0]


def acceptance(words: Words, lines: Sequence[Line]) -> str:
    """How often the first, second, ... drafted token was right, by mode, in percent."""
    with _figure(words, 2.5) as (figure, drawn):
        axes = figure.subplots()
        _draw_lines(axes, lines)
        axes.set_ylim(0.0, 105.0)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("% right")
        axes.set_xticks(range(1, 1 + max((len(line.ys) for line in lines), default=1)))
        _legend(figure)
    return drawn[0]


def over_time(words: Words, panels: Mapping[str, Sequence[Line]], x_label: str, *, dots: bool = False) -> str:
    """Panels one above the other over the same time, by their label; the first one is the tallest.

    Args:
        words: for the screen reader.
        panels: by label, their lines; a panel without a value is left out.
        x_label: of the common axis.
        dots: whether the first panel has points only.
    """
    shown = {label: lines for label, lines in panels.items() if any(y is not None for line in lines for y in line.ys)}
    heights = [2.0, *[1.0] * (len(shown) - 1)]
    with _figure(words, 0.7 + sum(heights[: len(shown)])) as (figure, drawn):
        column = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for number, (axes, (label, lines)) in enumerate(zip(column, shown.items(), strict=False)):  # at least one axes
            _draw_lines(axes, lines, dots=dots and number == 0, alone=number > 0)
            axes.set_ylabel(label)
            if number == 0:
                axes.set_ylim(0.0, 1.1 * max((y for line in lines for y in line.ys if y is not None), default=1.0))
        column[-1].set_xlabel(x_label)
        _legend(figure)
    return drawn[0]


def _draw_lines(axes: Axes, lines: Sequence[Line], *, dots: bool = False, alone: bool = False) -> None:
    """`alone`: named by the axis, so that the legend need not."""
    number = 0
    for line in lines:
        color, marker = (_COLORS["ink"], "o") if line.base else _look(number)
        number += not line.base
        ys = [float("nan") if y is None else y for y in line.ys]
        axes.plot(
            line.xs, ys, color=color, marker=marker, markersize=3.2, linewidth=0.0 if dots else 1.4,
            label=None if alone else _short(line.name),
        )  # fmt: skip


@contextmanager
def _figure(words: Words, height_in: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure to draw on; afterwards the list has it as SVG."""
    # Here, as loading it takes half a second and memory that a benchmark would count as its own.
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"matplotlib does not load ({error}): {_INSTALL}") from error

    drawn: list[str] = []
    with mpl.rc_context(), warnings.catch_warnings():
        # A font of the machine that draws may lack a character; the browser's has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)  # type: ignore[arg-type]  # names and values are matplotlib's own
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        yield figure, drawn
        raw = BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(raw, format="svg", metadata=nothing)
    drawn.append(_for_page(raw.getvalue(), words))


def _for_page(svg: bytes, words: Words) -> str:
    """A file of matplotlib's as an element of a page: its size is the page's to choose, its ids are unique there."""
    root = ElementTree.fromstring(svg)  # our own output, not a stranger's
    for parent in (root, *root.findall(f"{_SVG}defs")):
        for found in [child for child in parent if child.tag in {f"{_SVG}metadata", f"{_SVG}style"}]:
            parent.remove(found)  # a style in an SVG is one of the whole page
    used = set(re.findall(r"(?:url\(|href=\")#([^\")]+)", svg.decode()))
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            if name == "id":
                if value in used:
                    element.set("id", f"{words.key}-{value}")
            elif name == f"{_XLINK}href":
                element.set("href", f"#{words.key}-{value.removeprefix('#')}")
            else:
                element.set(name, _in_page(value, words.key))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    title, text = (ElementTree.Element(name, id=f"{words.key}-{name}") for name in ("title", "desc"))
    title.text, text.text = words.title, words.text
    root[:0] = [title, text]
    root.set("role", "img")
    root.set("aria-labelledby", f"{title.get('id')} {text.get('id')}")
    return ElementTree.tostring(root, encoding="unicode")


def _in_page(value: str, key: str) -> str:
    """An attribute with the page's colours, fonts and ids."""
    for name, color in _COLORS.items():
        value = value.replace(color, f"var(--{name})")
    value = value.replace("url(#", f"url(#{key}-")
    return re.sub(r"'DejaVu Sans'[^;]*", "system-ui, sans-serif", value)


def _look(number: int) -> tuple[str, str]:
    return _COLORS[_SERIES[number % len(_SERIES)]], _MARKERS[number % len(_MARKERS)]


def _legend(figure: Figure) -> None:
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles: list[Artist] = [handle for pair in found for handle in pair[0]]
    labels = [str(label) for pair in found for label in pair[1]]
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=2)


def _between(known: Mapping[int, float], width: int) -> float:
    """On the line through the measured widths; beyond them, on the line from zero through the widest."""
    import numpy as np

    widest = max(known)
    if width > widest:
        return known[widest] * width / widest
    return float(np.interp(width, [*known], [*known.values()]))


def _short(text: str, longest: int = 18) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
