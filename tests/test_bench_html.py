"""The page: one sentence that is right, nothing from outside, nothing that is not escaped, a table for every chart."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.bench import charts
from edgespec.bench.html import PARTS, page, verdict
from edgespec.bench.marks import Beside, Moment
from edgespec.bench.page_data import spans, text
from edgespec.bench.report import build, to_json
from edgespec.bench.runner import Record, Run
from edgespec.errors import ConfigError

pytest.importorskip("matplotlib", reason="matplotlib is not installed: no charts")

EVIL = '"><script>alert(1)</script><img src=http://x.example/a.png onerror=a>$\\frac{1}$ \x00\x1b[31m\u202e\ud800 日本'
VOID = {"meta", "br", "img", "input", "link", "hr"}


def sample() -> dict[str, Any]:
    """A whole report with everything in it, as it comes out of a file."""
    runs: list[Run] = []
    for number, name in enumerate(("chat", "chat", "edit", "edit")):
        for mode, seconds in (("plain", 1.0), ("auto", 0.8), ("fixed-3", 1.1), ("plain2", 1.01)):
            moment = Moment(temp_c=50.0 + number, freq_cap=1.0 - number / 10, throttled=False, busy_others=0.1)
            runs.append(
                replace(
                    run_of(mode, question=f"q{number}", group=name, s=seconds + number / 100),
                    at_s=10.0 + len(runs), beside=Beside(moment, moment), drafted=20, accepted=13,
                    widths={1: 10, 3: 10} if mode != "plain" else {1: 100}, accepted_by_position=(8, 5),
                )
            )  # fmt: skip
    report = to_json(
        build(
            Record(runs), stamp={"model": "tiny", "threads": 2, "cpu": "fake", "date": "2026-01-01", "n_ctx": None},
            settings={"modes": ["plain", "auto", "fixed-3", "plain2"], "sampling": {"temperature": 0.0}},
            pass_s={1: 0.010, 2: 0.012, 4: 0.016, 8: 0.030},
        )
    )  # fmt: skip
    report["failures"] = [{"question_id": "q9", "group": "chat", "mode": "auto", "round": 0, "error": "EvalError: no"}]
    report["marked"] = [{"question_id": "q8", "group": "chat", "mode": "auto", "round": 0, "reason": "throttled"}]
    report["differences"] = [
        {"question_id": "q7", "group": "chat", "mode": "auto", "rounds": [0], "position": 12, "plain_token": 1,
         "mode_token": 2, "margin": 0.002, "top_margin": 0.0, "note": None}
    ]  # fmt: skip
    gap = {"share": 0.9, "lost_ms_token": {"no_proposal": 1.5, "wrong": 0.4, "too_short": 0.0, "too_long": 0.2}}
    report["ceiling"] = {"auto": {"share": 0.91, "by_group": {"chat": gap}}}
    part = {"answers": 3, "tok_s": 90.0, "drafted_per_round": 1.5}
    report["sustain"] = {
        "minutes": 1.0, "block_s": 5.0, "modes": {"plain": {}, "auto": {"ratio": 1.2}}, "failures": [],
        "blocks": [{"at_s": 5.0 * i, "modes": {"plain": part, "auto": part} if i % 3 else {}, "temp_c": 50.0 + i}
                   for i in range(12)],
    }  # fmt: skip
    report["concurrency"] = {
        "sessions": 4, "failures": [],
        "modes": {"plain": {"tok_s": 200.0}, "auto": {"tok_s": 240.0, "ratio": 1.2, "slowest_over_mean": 0.93}},
    }  # fmt: skip
    found: dict[str, Any] = json.loads(json.dumps(report))
    return found


class Checked(HTMLParser):
    """Reads a page and complains about what a browser would have to guess or to fetch."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "form", "base", "image", "style"} or (
            tag == "style" and self.open == ["html", "head"]
        )
        assert not [name for name in found if name.startswith("on")]
        for name, value in found.items():
            assert name not in {"src", "srcset", "action", "data", "poster", "background", "ping"}
            assert name != "href" or value.startswith("#")
            assert not re.search(r"url\((?!#)|https?:|//", value), (tag, name, value)
        self.ids.extend([found["id"]] if "id" in found else [])
        self.elements.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        assert "@import" not in data
        assert not re.search(r"url\(", data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def whole() -> str:
    return page(sample())


def test_nothing_points_outside_and_every_chart_has_words_and_a_table(whole: str) -> None:
    found = Checked(whole)
    assert len(set(found.ids)) == len(found.ids)
    for name, value in ((n, v) for _, attrs in found.elements for n, v in attrs.items()):
        if name in {"aria-labelledby", "href"}:
            assert set(value.replace("#", "").split()) <= set(found.ids)
        for ident in re.findall(r"url\(#([^)]+)\)", value):
            assert ident in found.ids
    drawn = found.all("svg")
    assert len(drawn) == 5
    assert all(svg["role"] == "img" and svg["aria-labelledby"] and "viewbox" in svg for svg in drawn)
    assert len(found.all("details")) == len(drawn)  # the table of a chart
    assert len(found.all("table")) == len(found.all("caption")) == len(drawn) + 7
    assert found.all("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in whole
    assert any(meta.get("name") == "viewport" for meta in found.all("meta"))
    assert any("default-src 'none'" in meta.get("content", "") for meta in found.all("meta"))


def test_colours_are_the_page_s(whole: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", whole, re.S))
    assert "var(--c1)" in drawn
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)
    defined = set(re.findall(r"(--\w+):", whole))
    assert set(re.findall(r"var\((--\w+)\)", whole)) <= defined


def test_what_it_says(whole: str) -> None:
    words = " ".join(" ".join(Checked(whole).words).split())
    for said in (
        "Yes: with drafting, answers are written 1.25 times as fast as without (95 % interval 1.2",
        "mean over 2 groups of questions", "tiny, 2 threads, fake, 2026-01-01",
        "32 of 40 (80 %)", "20 of 40 (50 %)",  # of 40 drafts in four runs, positions 1 and 2
        "16.00 1.60",  # milliseconds of four rows, in single passes
        "EvalError: no", "throttled", "q7 auto 12 0.0020", "4 answers at once", "91 %", "fixed-3",
        "auto – – 53 70 % 0.10",  # memory and joules unknown, highest temperature, lowest clock, others
        "plain again (noise)", "clock %: the highest clock", "sampling: temperature 0",
    ):  # fmt: skip
        assert said in words, said


def test_the_same_report_is_the_same_page(whole: str, tmp_path: Path) -> None:
    """In another process with other hashes too, and under a user's own style of charts."""
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nsvg.fonttype: path\n")
    code = "import json, sys; from edgespec.bench.html import page; print(page(json.load(sys.stdin)), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, input=json.dumps(sample()).encode(),
        env={**os.environ, "PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.stdout.decode() == whole


def test_what_comes_from_prompts_and_models_is_escaped() -> None:
    report = sample()
    report["groups"][EVIL] = report["groups"].pop("chat")
    report["texts"][EVIL] = {"repetitive": True}
    report["stamp"] = {"model": EVIL, "cpu": EVIL, EVIL: EVIL}
    report["settings"]["modes"].insert(1, EVIL)
    report["geomean"][EVIL] = report["geomean"]["auto"]
    for name in ("failures", "marked", "differences"):
        report[name] = [dict.fromkeys(item, EVIL) for item in report[name]]
    report["sustain"]["blocks"][1]["modes"][EVIL] = {"tok_s": 3.0}
    report["concurrency"]["modes"][EVIL] = {"tok_s": 3.0}
    made = page(report)
    Checked(made)  # no script, no address, no handler
    assert "alert(1)" in made
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800]", made)
    made.encode()


@pytest.mark.parametrize(
    ("mean", "noise", "kind", "said"),
    [
        ({"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "groups": 3}, 1.0, "yes", "1.20 times"),
        ({"ratio": 1.004, "ratio_low": 1.001, "ratio_high": 1.007}, 1.0, "yes", "1.004 times"),
        ({"ratio": 0.9, "ratio_low": 0.8, "ratio_high": 0.99}, 1.0, "no", "interval 0.80 to 0.990"),
        ({"ratio": 1.1, "ratio_low": 0.9, "ratio_high": 1.3}, 1.0, "open", "1.10 times"),
        ({"ratio": 1.1, "ratio_low": 1.0, "ratio_high": 1.3}, None, "open", "1.10 times"),
        ({"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3}, 0.92, "open", "1.20 times"),
        ({"ratio": 1.2, "ratio_low": None, "ratio_high": None}, 1.0, "open", "1.20 times"),
        ({"ratio": None}, 1.0, "open", "no question"),
        ({"ratio": float("nan")}, 1.0, "open", "no question"),
    ],
)
def test_is_it_worth_it(mean: dict[str, object], noise: float | None, kind: str, said: str) -> None:
    found = verdict({"geomean": {"auto": mean, "plain2": {"ratio": noise}, "plain": {}}})
    assert found.kind == kind
    assert said in found.rest


def test_another_mode_than_auto_is_named() -> None:
    mean = {"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3}
    found = verdict({"geomean": {"plain": {}, "oracle": mean, "fixed-3": mean}})
    assert "drafting (fixed-3)" in found.rest


SAMPLE = sample()
NOTHING: list[Any] = [None, [], {}, "x", 3, True, [1], {"a": 1}]


def broken(found: Any, rng: random.Random) -> Any:
    """A report in which anything may be missing or be something else."""
    if rng.random() < 0.04:
        return rng.choice(NOTHING)
    if isinstance(found, dict):
        return {key: broken(value, rng) for key, value in found.items() if rng.random() > 0.05}
    return [broken(value, rng) for value in found] if isinstance(found, list) else found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_report_with_holes_still_makes_its_parts(seed: int) -> None:
    report = broken(SAMPLE, random.Random(seed))
    report = report if isinstance(report, dict) else {}
    verdict(report)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ratios", "staircase", "acceptance", "over_time"):
            patch.setattr(charts, name, lambda *_, **__: "<svg></svg>")  # the drawing itself takes long
        for part in PARTS:
            part(report)


@pytest.mark.parametrize("seed", range(4))
def test_a_report_with_holes_is_a_page(seed: int) -> None:
    Checked(page({**SAMPLE, **{key: broken(value, random.Random(seed)) for key, value in SAMPLE.items()}}))


def test_why_several_at_once_were_not_measured() -> None:
    assert "too large" in page({"concurrency": {"sessions": 2, "modes": {}, "problem": "too large"}})


def test_an_empty_report_is_a_page() -> None:
    assert "It cannot be said" in page({})
    only_plain = to_json(build(Record([run_of("plain")])))
    assert "It cannot be said" in page(only_plain)


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^--html needs matplotlib: pip install 'edgespec\[bench\]'$"):
        charts.check_installed()


def test_spans_are_means_and_cover_everything() -> None:
    rows = spans([0.0, 1.0, 9.0, 10.0], [[1.0, 3.0, None, 5.0], [None] * 4], 2)
    assert rows == [(0.0, [2.0, None]), (5.0, [5.0, None])]
    assert spans([4.0], [[1.0]], 3) == [(4.0, [1.0])]


def test_names_cannot_hide_or_turn_text() -> None:
    assert text("a\nb\x00\u202ec" + "d" * 400).startswith("a b\ufffd\ufffdcd")
    assert len(text("d" * 400)) == 300


def test_charts_leave_the_caller_s_style_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    charts.acceptance(charts.Words("a", "t", "d"), [charts.Line("auto", [1, 2], [90.0, None])])
    assert dict(mpl.rcParams) == before


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it(whole: str, width: int, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "page.html").write_text(whole)
    assert BROWSER is not None
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/b",
         f"--window-size={width},900", f"--screenshot={tmp_path}/page.png", f"file://{tmp_path}/page.html"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with Image.open(tmp_path / "page.png") as shot:
        assert shot.width >= width
        assert len(shot.convert("RGB").getcolors(1 << 24) or []) > 100
