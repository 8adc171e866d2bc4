"""Certifying: what depends on width, threads, chunks or company is found, and nothing else; the file; the command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import gguf_maker
import numpy as np
import pytest
from unsteady import Unsteady, Ways, certified

from edgespec import certificate
from edgespec.certificate import Cell, Certificate, Flip, Price
from edgespec.certify import certify
from edgespec.certify_grid import Grid, Means, thread_counts, widths
from edgespec.cli import main
from edgespec.cli.certify import _contexts, report
from edgespec.errors import ConfigError, ModelError
from edgespec.interfaces import Capabilities

STEADY = Ways()


def kinds(found: Certificate, kind: certificate.Kind) -> dict[int, float]:
    """Largest deviation by n."""
    return {cell.n: max(c.deviation for c in found.find(kind, cell.kv) if c.n == cell.n) for cell in found.cells
            if cell.kind == kind}  # fmt: skip


def test_a_steady_model_is_exact_everywhere() -> None:
    found = certified(STEADY)
    assert {cell.kind for cell in found.cells} == {"width", "single", "wide", "prefill", "chunk", "company"}
    assert {cell.deviation for cell in found.cells} == {0.0}
    assert not [flip for cell in found.cells for flip in cell.flips]
    assert found.exact_widths("f16/f16") == frozenset(range(2, 9))


@pytest.mark.parametrize(
    ("ways", "kind", "off"),
    [
        (Ways(widths=frozenset({3, 8})), "width", {3, 8}),
        (Ways(single=frozenset({2})), "single", {2}),
        (Ways(wide=frozenset({1})), "wide", {1}),
        (Ways(prefill=frozenset({1})), "prefill", {1}),
        (Ways(chunks=True), "chunk", {8}),
        (Ways(company=True), "company", {4}),
    ],
)
def test_each_dependence_is_found_and_no_other(ways: Ways, kind: certificate.Kind, off: set[int]) -> None:
    found = certified(ways)
    assert {n for n, deviation in kinds(found, kind).items() if deviation} == off
    assert {cell.kind for cell in found.cells if cell.deviation} == {kind}


def test_a_dependence_from_some_length_on_is_found_at_that_length() -> None:
    found = certified(Ways(widths=frozenset({2, 3, 4, 5, 6, 7, 8}), from_ctx=32))
    assert found.exact_widths("f16/f16", 32) == frozenset(range(2, 9))
    assert found.exact_widths("f16/f16") == frozenset()


def test_flips_are_listed_with_the_margin_they_overcame() -> None:
    found = certified(Ways(widths=frozenset({4}), size=3.0))
    flips = [flip for cell in found.cells for flip in cell.flips]
    assert flips
    assert all(0 <= flip.margin <= 2 * found.cells[0].deviation + 6.0 for flip in flips)
    assert {cell.n for cell in found.cells if cell.flips} == {4}


def test_not_a_number_is_no_deviation_of_zero() -> None:
    found = certified(Ways(widths=frozenset({4}), size=float("nan")))
    assert found.exact_widths("f16/f16") == frozenset(range(2, 9)) - {4}
    assert certificate.from_json(json.loads(json.dumps(certificate.to_json(found), allow_nan=False))) == found


def test_memories_that_take_nothing_back_have_no_width() -> None:
    found = certified(STEADY, Capabilities(1, max_rollback=0, rewind=False, rollback=None))
    assert not [cell for cell in found.cells if cell.kind == "width"]


def test_widths_keep_to_what_a_bounded_memory_takes_back() -> None:
    found = certified(STEADY, Capabilities(1, max_rollback=4, rewind=False))
    assert {cell.n for cell in found.cells if cell.kind == "width"} == {2, 3, 4, 5}


def test_a_type_that_the_model_refuses_is_named_and_the_others_are_measured() -> None:
    def opener(kv: str, n_ctx: int, n_sessions: int) -> Unsteady:
        if kv.startswith("q8_0"):
            raise ModelError("no such cache here")
        return Unsteady(STEADY, n_ctx=n_ctx * n_sessions)

    grid = Grid((8,), (2,), (1,), 1, 8, n_piece=8)
    cells, _, refused = certify(("q8_0/q8_0", "f16/f16"), Means(opener, [1] * 64, grid, lambda: 0.0), 1.0)
    assert refused == [("q8_0/q8_0", "no such cache here")]
    assert {cell.kv for cell in cells} == {"f16/f16"}


def test_over_budget_each_cell_still_has_one_piece() -> None:
    class Hurried:
        now_s = 0.0

        def __call__(self) -> float:
            self.now_s += 100.0
            return self.now_s

    grid = Grid((8, 32), (2, 3), (1,), 1, 8 * 5, n_piece=8)
    opener: Callable[[str, int, int], Unsteady] = lambda kv, n_ctx, n: Unsteady(STEADY, n_ctx=n_ctx * n)  # noqa: E731 - typed
    cells, _, _ = certify(("f16/f16",), Means(opener, [1] * 64, grid, Hurried()), 1.0)
    assert {(cell.n_ctx, cell.n, cell.n_tokens) for cell in cells if cell.kind == "width"} == {
        (8, 2, 8), (8, 3, 8), (32, 2, 8), (32, 3, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("usual", "n_ctx", "lengths"),
    [
        ((96, 640), 640, (96, 640)),
        ((96, 640), 2048, (96, 2048)),
        ((96, 640), 64, (64,)),
        ((96, 272, 1024, 2048), 2048, (96, 272, 1024, 2048)),
        ((96, 272, 1024, 2048), 500, (96, 272)),
        ((96, 272, 1024, 2048), 9000, (96, 272, 1024, 2048, 4096, 8192)),
        ((96, 272, 1024, 2048), 50, (50,)),
    ],
)
def test_lengths_of_context(usual: tuple[int, ...], n_ctx: int, lengths: tuple[int, ...]) -> None:
    assert _contexts(usual, n_ctx) == lengths


def test_widths_of_the_longest_draft_and_below() -> None:
    assert widths(15) == (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
    assert widths(7) == (2, 3, 4, 5, 6, 7, 8)
    assert widths(1) == (2,)
    assert widths(63) == (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)


@pytest.mark.parametrize(
    ("n", "n_most", "counts"), [(1, 1, (1,)), (2, 2, (1, 2)), (4, 8, (1, 2, 3, 4, 8)), (8, 8, (1, 2, 4, 7, 8))]
)
def test_thread_counts(n: int, n_most: int, counts: Sequence[int]) -> None:
    assert thread_counts(n, n_most) == counts


def test_the_interval_of_flips_is_wilsons() -> None:
    cell = Cell("width", "f16/f16", 2, 96, 1000, 0.5, tuple(Flip(1, 0.1) for _ in range(10)))
    rate, low, high = cell.flips_per_10k()
    assert rate == pytest.approx(100)
    assert low == pytest.approx(54.4, abs=0.1)
    assert high == pytest.approx(183.1, abs=0.1)
    none = replace(cell, flips=()).flips_per_10k()
    assert none[:2] == (0.0, 0.0)
    assert none[2] == pytest.approx(38.3, abs=0.1)


def test_the_deviation_between_two_ways_is_the_sum_of_theirs() -> None:
    cells = tuple(Cell("width", "f16/f16", n, 96, 10, deviation) for n, deviation in ((2, 0.4), (3, 0.0), (4, 0.7)))
    found = Certificate("f", "b", "m", 2, 100, True, cells, ())
    assert found.deviation("f16/f16") == pytest.approx(1.1)
    assert found.deviation("q8_0/q8_0") is None


def test_a_certificate_survives_the_disk_and_is_of_one_model_build_and_machine() -> None:
    found = replace(certified(Ways(widths=frozenset({4}))), prices=(Price("f16/f16", 96, 2.0, 1.0, 2.5, 4.0, 3.5),))
    path = certificate.save(found)
    assert certificate.load("f", "b", "m") == (found, None)
    raw = json.loads(path.read_text())
    assert raw.pop("kernels") is None
    path.write_text(json.dumps(raw))
    assert certificate.load("f", "b", "m") == (found, None)  # as earlier versions wrote it
    certificate.save(replace(found, kernels="avx2"))
    assert certificate.load("f", "b", "m") == (replace(found, kernels="avx2"), None)
    assert certificate.load("f", "b", "another machine") == (None, None)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 9}', b"\xff", b"[" * 10**5, b"null"])
def test_a_damaged_certificate_is_none_and_says_so(content: bytes) -> None:
    path = certificate.save(certified(STEADY))
    path.write_bytes(content)
    found, note = certificate.load("f", "b", "m")
    assert found is None
    assert note is not None
    assert "edgespec certify" in note


@pytest.mark.parametrize(
    "change",
    [
        {"deviation": -1.0}, {"deviation": "NaN"}, {"deviation": 10**400}, {"n_tokens": 0}, {"n_tokens": 10**400},
        {"kind": "other"}, {"n": 0}, {"n": 513}, {"n": 2.5}, {"n": True}, {"n_ctx": -1}, {"n_ctx": math.inf},
        {"kv": ""}, {"kv": "f16"}, {"kv": "q4_9/f16"}, {"kv": "f16/f16/f16"}, {"kv": None}, {"kv": 5},
        {"flips": [{"n_ctx": math.inf, "margin": 0.1}]},
    ],
)  # fmt: skip
def test_absurd_values_of_a_cell_are_no_certificate(change: dict[str, object]) -> None:
    path = certificate.save(certified(STEADY))
    raw = json.loads(path.read_text())
    raw["cells"][0] |= {"kind": "width"} | change
    path.write_text(json.dumps(raw))
    found, note = certificate.load("f", "b", "m")
    assert found is None
    assert "edgespec certify" in (note or "")


@pytest.mark.parametrize("change", [{"kv": "a/b/c"}, {"n_ctx": math.inf}, {"four_ms": 10**400}, {"usual_ms": "free"}])
def test_absurd_values_of_a_price_are_no_certificate(change: dict[str, object]) -> None:
    path = certificate.save(replace(certified(STEADY), prices=(Price("f16/f16", 96, 2.0, 1.0, 2.5, 4.0, 3.5),)))
    raw = json.loads(path.read_text())
    raw["prices"][0] |= change
    path.write_text(json.dumps(raw))
    assert certificate.load("f", "b", "m")[0] is None


@pytest.mark.parametrize("change", [{"n_ctx": 0}, {"n_threads": 0}, {"n_ctx": math.inf}, {"n_threads": 10**400}])
def test_absurd_values_of_the_whole_are_no_certificate(change: dict[str, object]) -> None:
    path = certificate.save(certified(STEADY))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert certificate.load("f", "b", "m")[0] is None


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written"):
        certificate.save(certified(STEADY))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "tiny.gguf")


ARGS = ("--quick", "--ctx", "256", "--max-draft", "3", "--threads", "1", "--offline")


def test_the_command_measures_saves_and_prints(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["certify", str(tiny), *ARGS, "--kv-type", "f16", "--json"]) == 0
    out, err = capsys.readouterr()
    raw = json.loads(out)
    assert raw["quick"] is True
    assert {cell["kv"] for cell in raw["cells"]} == {"f16/f16"}
    assert {cell["n"] for cell in raw["cells"] if cell["kind"] == "width"} == {2, 3, 4}
    assert all(price["one_ms"] > 0 for price in raw["prices"])
    assert "f16/f16, 96 tokens of context" in err
    assert main.run(["models", "show", str(tiny)]) == 0
    assert "exact widths: f16/f16" in capsys.readouterr().out


@pytest.mark.parametrize(("kernels", "named"), [(None, "ggml's own kernels"), ("avx2", "avx2 kernels")])
def test_the_report_says_which_kernels_were_timed(kernels: str | None, named: str) -> None:
    assert f"times were taken with {named}" in list(report(replace(certified(STEADY), kernels=kernels)))


def test_a_type_that_does_not_fit_is_said(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Heads of 16 values are no block of q8_0."""
    assert main.run(["certify", str(tiny), *ARGS, "--kv-type", "q8_0"]) == 3
    assert "nothing could be measured" in capsys.readouterr().err


def test_ctrl_c_leaves_an_earlier_certificate(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["certify", str(tiny), *ARGS, "--kv-type", "f16", "--json"]) == 0
    before = capsys.readouterr().out

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = Path(certificate.certificate_file("", "", "")).parent
    files = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("edgespec.certify._Bench.compare_prompts", interrupted)
    assert main.run(["certify", str(tiny), *ARGS, "--kv-type", "f16"]) == main.INTERRUPTED
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
    assert json.loads(before)["cells"]


def test_rows_are_compared_bit_by_bit() -> None:
    """A difference too small for a printed digit is one."""
    found = certified(Ways(widths=frozenset({5}), size=float(np.float32(1e-6))))
    assert 5 not in found.exact_widths("f16/f16")
