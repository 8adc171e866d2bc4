"""The report as one page for a person: whether drafting is worth it, and charts and tables of why.

Made from the data of `report.to_json`; what is missing there is left out here. The page asks for nothing outside itself
and runs no script. The same data gives the same page.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgespec.bench import page_charts, page_lists
from edgespec.bench.modes import PLAIN_AGAIN
from edgespec.bench.page_data import Data, items, main_mode, number, text, times
from edgespec.bench.report import BenchReport, to_json, write_whole

PARTS = (
    page_charts.ratios, page_charts.staircase, page_charts.acceptance, page_charts.timeline, page_charts.sustained,
    page_lists.concurrency, page_lists.ceiling, page_lists.footprint, page_lists.texts, page_lists.left_out,
    page_lists.stamp,
)  # fmt: skip
"""In the order of the page."""
_QUIET = 0.05
"""Plain decoding further than this from itself: the machine was not quiet, and no ratio of it is to be trusted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one sentence; `word` stands out. `kind` is "yes", "no" or "open"."""

    kind: str
    word: str
    rest: str


def page(report: Data) -> str:
    """The whole page.

    Raises:
        ConfigError: matplotlib does not load.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    sections = [section for part in PARTS if (section := part(report)) is not None]
    template = resources.files("edgespec.bench").joinpath("page.html").read_text(encoding="utf-8")
    stamp = items(report.get("stamp"))
    where = [
        (f"{text(stamp[name])} thread" + ("s" if stamp[name] != 1 else "")) if name == "threads" else text(stamp[name])
        for name in ("model", "threads", "cpu", "date")
        if stamp.get(name)
    ]
    page: str = (
        Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        .from_string(template)
        .render(
            title=" ".join(["Is drafting worth it?", *where[:1]]),
            verdict=verdict(report),
            warnings=warnings(report),
            where=", ".join(where),
            sections=sections,
            drawn={section.key: Markup(section.svg) for section in sections if section.svg},
        )
    )
    return page


def save(report: BenchReport, path: Path) -> None:
    """Write the page of a report; the file is whole or not there.

    Raises:
        ConfigError: matplotlib does not load, or the file cannot be written.
    """
    write_whole(page(to_json(report)), path)


def verdict(report: Data) -> Verdict:
    """Whether drafting is worth it: the geometric mean over groups of the mode in question, with its interval."""
    means, mode = items(report.get("geomean")), main_mode(report)
    mean = items(means.get(mode))
    ratio, low, high = (number(mean.get(name)) for name in ("ratio", "ratio_low", "ratio_high"))
    if ratio is None:
        return Verdict("open", "It cannot be said:", "no question was answered both with and without drafting.")
    n_groups = number(mean.get("groups")) or 0
    over = f", mean over {n_groups:.0f} groups of questions" if n_groups > 1 else ""
    name = "drafting" if mode == "auto" else f"drafting ({text(mode)})"
    if low is None or high is None:
        said = f"with {name}, answers were written {times(ratio)} times as fast as without{over}."
        return Verdict("open", "Too few answers to say:", said)
    said = (
        f"with {name}, answers are written {times(ratio)} times as fast as without "
        f"(95 % interval {times(low)} to {times(high)}{over})."
    )
    if _disturbed(report) is not None:
        return Verdict("open", "Not to be trusted, as the machine was busy:", said)
    if low > 1.0:
        return Verdict("yes", "Yes:", said)
    if high < 1.0:
        return Verdict("no", "No:", said)
    return Verdict("open", "No difference that can be told from chance:", said)


def warnings(report: Data) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    if report.get("partial"):
        found.append("The run was interrupted: the numbers are of the answers that were finished.")
    if (noise := _disturbed(report)) is not None:
        found.append(
            f"Plain decoding against itself came out at {noise:.3f} instead of 1: other programs or heat disturbed the "
            "run. Measure again when nothing else runs."
        )
    loops = [
        text(group)
        for group, how in items(report.get("texts")).items()
        if items(how).get("repetitive") or items(how).get("repetitive_answers")
    ]
    if loops:
        ratio = number(items(items(report.get("geomean")).get(main_mode(report))).get("ratio_without_repetitive"))
        without = f" Without them it is {times(ratio)} times as fast." if ratio is not None else ""
        found.append(
            f"Answers that repeat themselves ({', '.join(loops)}) are easy to guess: what drafting gains on them says "
            f"little about real text.{without}"
        )
    if number(report.get("unexplained_differences")):
        found.append("Some texts differ from those of plain decoding by more than the certificate explains.")
    return found


def _disturbed(report: Data) -> float | None:
    """Plain decoding against itself, where that is too far from 1."""
    noise = number(items(items(report.get("geomean")).get(PLAIN_AGAIN)).get("ratio"))
    return noise if noise is not None and abs(noise - 1.0) > _QUIET else None
