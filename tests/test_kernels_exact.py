"""The kernels' results are ggml's own, bit for bit; a fault in them is found, not lived with."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_tools import FORMS, changed_sources, compiled, needs_kernels

from edgespec.kernels import compiled as building
from edgespec.kernels.load import declare, text_of
from edgespec.kernels.operations import Q4_1, Q4_K, Q5_0, Q6_K, Q8_0
from edgespec.target import lib

pytestmark = needs_kernels
_SLOWEST = FORMS[-1] if FORMS else building.SETS[-1]
"""The form of plain AVX2: quickest to compile."""


_SCALES = "_mm256_mul_ps(d, _mm256_set1_ps(x[r].d))"
_MINS = "_mm256_cvtepi32_ps(min[r]), _mm256_mul_ps(dmin, dx)"


def self_test(library: Path, seed: int, n_cases: int) -> str | None:
    """The library's comparison with ggml, which must be loaded; nothing is put in front of it here."""
    lib.native()
    return text_of(declare(ctypes.CDLL(str(library))).edgespec_self_test(seed, n_cases))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_twelve_thousand_random_and_extreme_cases_of_each_type(form: building.InstructionSet, tmp_path: Path) -> None:
    # Three types of plain weights share so many cases, the others have them each.
    assert self_test(compiled(tmp_path, form), 1, 36_000) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(
            "q4_0_avx2.c",
            f"_mm256_fmadd_ps(isum, {_SCALES}, ",
            f"_mm256_add_ps(_mm256_mul_ps(isum, {_SCALES}), ",
            id="rounded twice",
        ),
        pytest.param("q4_0_avx2.c", "x[r].offset)", "x[r].offset + 1)", id="an integer off by one"),
        pytest.param("q4_0_avx2.c", "(0, 1, 4, 5, 2, 3, 6, 7)", "(0, 1, 4, 5, 2, 3, 7, 6)", id="two columns exchanged"),
        pytest.param("q4_0_avx2.c", "n_rows - r)", "n_rows - r > 3 ? 3 : n_rows - r)", id="every fourth row left out"),
        pytest.param("q4_0_avx2.c", "i < n_w; i++, w", "i <= n_w; i++, w", id="columns beyond the last"),
        pytest.param("unpacked_avx2.c", "sum + rest[r] : sum", "rest[r] : sum", id="only what the sums give"),
        pytest.param("unpacked_avx2.c", "(q, weight)", "(q, values)", id="signs of the weights lost"),
        pytest.param("unpacked_avx2.c", "2 * n_rows, n_rows)", "2 * n_rows, n_rows - 1)", id="the last sum lost"),
        pytest.param(
            "unpacked_avx2.c", "_mm_movehl_ps(sum, sum)", "_mm_movehdup_ps(sum)", id="lanes added in another order"
        ),
        pytest.param(
            "k_avx2.c",
            f"_mm256_fmadd_ps({_MINS}, rest[r])",
            f"_mm256_add_ps(_mm256_mul_ps({_MINS}), rest[r])",
            id="mins rounded twice",
        ),
        pytest.param("k_avx2.c", "_mm256_sub_ps(acc[r], rest[r])", "acc[r]", id="mins forgotten"),
        pytest.param("k_avx2.c", "2, 2, 3, 3, 6, 6, 7, 7)", "2, 2, 3, 3, 7, 7, 6, 6)", id="scales exchanged"),
        pytest.param("k_avx2.c", "(packed[0] >> 2) & 0x30303030", "(packed[0] >> 2) & 0x10303030", id="a top bit"),
        pytest.param("k_avx2.c", "scales), 5);", "scales), 4);", id="weights less 16 instead of 32"),
        pytest.param("k_avx2.c", "_mm256_slli_epi16(high, 2)", "_mm256_slli_epi16(high, 4)", id="other high bits"),
        pytest.param(
            "k_avx2.c", "_mm256_set1_ps(d * x->d[at + r])", "_mm256_set1_ps(d)", id="the scale of the row forgotten"
        ),
        pytest.param("k_avx2.c", "_mm_movehl_ps(sum, sum)", "_mm_movehdup_ps(sum)", id="lanes added otherwise"),
    ],
)
def test_the_self_test_finds_what_is_wrong(
    file: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = changed_sources(tmp_path, file, old, new)
    monkeypatch.setattr(building, "SOURCES", sources)
    problem = self_test(compiled(tmp_path, _SLOWEST, "-O1"), 1, 300)
    assert problem is not None
    assert problem.startswith("case ")


Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: form.name)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A process in which ggml computes behind the kernels."""
    library = compiled(tmp_path_factory.mktemp("kernels"), request.param)
    worker = Path(__file__).parent / "kernels_worker.py"
    command = [sys.executable, str(worker), str(library), str(building.library_folder())]
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that spin take long on a busy machine
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(**case: object) -> dict[str, Any]:
            print(json.dumps(case), file=process.stdin, flush=True)
            answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]  # asserted above
            assert isinstance(answer, dict)
            return answer

        yield ask
        process.stdin.close()
    assert process.returncode == 0


@given(
    n_rows=st.one_of(st.integers(1, 19), st.integers(20, 70)),
    n_columns=st.integers(1, 40).map(lambda n: 8 * n),
    n=st.integers(1, 9).map(lambda n: 32 * n),
    n_threads=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_whole_products_on_any_number_of_threads(
    run: Run, n_rows: int, n_columns: int, n: int, n_threads: int, seed: int
) -> None:
    ask = partial(run, n=n, n_columns=n_columns, n_rows=n_rows, n_threads=n_threads, seed=seed)
    answer = ask(on=True)
    assert answer["wrong"] == []
    assert (answer["n_shares"] > 0) == (n_rows >= 2)
    # All rows of a share are one pass over its weights, also those that ggml asks for one by one.
    assert answer["n_shares"] <= max(1, min(4 * n_threads, n_columns // 8))


@given(
    kind=st.sampled_from([Q4_1, Q5_0, Q8_0]),
    n_rows=st.one_of(st.integers(1, 19), st.integers(20, 70)),
    n_columns=st.integers(1, 80).map(lambda n: 4 * n),
    n=st.integers(1, 9).map(lambda n: 32 * n),
    n_threads=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_whole_products_of_plain_weights(
    run: Run, kind: int, n_rows: int, n_columns: int, n: int, n_threads: int, seed: int
) -> None:
    case = {"n": n, "n_columns": n_columns, "n_rows": n_rows, "n_threads": n_threads, "seed": seed, "kind": kind}
    assert run(**case, on=True) == {"wrong": [], "n_shares": n_threads if n_rows >= 2 else 0}


@given(
    kind=st.sampled_from([Q4_K, Q6_K]),
    n_rows=st.integers(1, 24),
    n_columns=st.integers(1, 40).map(lambda n: 8 * n),
    n=st.integers(1, 5).map(lambda n: 256 * n),
    n_threads=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_whole_products_of_weights_in_blocks_of_256(
    run: Run, kind: int, n_rows: int, n_columns: int, n: int, n_threads: int, seed: int
) -> None:
    """Passes that check drafts equal single rows; more rows than 16 are a prompt, computed by ggml and in its order."""
    case = {"n": n, "n_columns": n_columns, "n_rows": n_rows, "n_threads": n_threads, "seed": seed, "kind": kind}
    answer = run(**case, on=True)
    if 2 <= n_rows <= 16:
        assert answer == {"wrong": [], "n_shares": n_threads}
    else:
        assert answer == {**run(**case, on=False), "n_shares": 0}


def test_any_number_of_plain_weights_in_blocks_of_256(run: Run) -> None:
    case = {"n": 512, "n_columns": 37, "n_rows": 5, "n_threads": 3, "seed": 1, "kind": Q6_K}
    assert run(**case, on=True) == {"wrong": [], "n_shares": 3}


def test_stock_kernels_give_rows_of_q4_k_other_last_bits_when_there_are_four(run: Run) -> None:
    """What ours are there to avoid; if ggml changes it, docs/decisions/0012 is due."""
    case = {"n": 1536, "n_columns": 64, "n_rows": 4, "n_threads": 1, "seed": 1, "kind": Q4_K}
    assert run(**case, on=False) == {"wrong": [0, 1, 2, 3], "n_shares": 0}
    assert run(**case, on=True) == {"wrong": [], "n_shares": 1}


def test_weights_that_do_not_fill_a_tile_are_left_to_ggml(run: Run) -> None:
    case = {"n": 64, "n_columns": 42, "n_rows": 5, "n_threads": 2, "seed": 1, "kind": Q4_1}
    assert run(**case, on=True) == {"wrong": [], "n_shares": 0}


def test_switched_off_they_compute_nothing(run: Run) -> None:
    assert run(n=64, n_columns=64, n_rows=5, n_threads=2, seed=1, on=False) == {"wrong": [], "n_shares": 0}


@given(
    n_heads=st.integers(1, 4),
    n_cells=st.sampled_from([32, 256, 512, 544, 1024]),
    n_rows=st.integers(1, 4),
    n_threads=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_a_row_of_attention_is_the_same_on_any_number_of_threads_and_beside_others(
    run: Run, n_heads: int, n_cells: int, n_rows: int, n_threads: int, seed: int
) -> None:
    case = {"n_heads": n_heads, "n_cells": n_cells, "n_rows": n_rows, "n_threads": n_threads, "seed": seed}
    assert run(**case, on=True) == {"steady": True}


def test_ggmls_own_attention_of_a_single_row_hangs_on_the_threads(run: Run) -> None:
    """What ours is there to avoid; if ggml changes it, docs/decisions/0017 is due."""
    case = {"n_heads": 2, "n_rows": 1, "n_threads": 2, "seed": 1}
    assert run(**case, n_cells=512, on=False) == {"steady": False}
    assert run(**case, n_cells=512, on=True) == {"steady": True}
    assert run(**case, n_cells=480, on=False) == {"steady": True}, "not split yet"


_HARNESS = r"""
#include <stdio.h>
#include <stdlib.h>
#include "k.h"
#include "rows.h"
#include "unpacked.h"
static unsigned state = 1;
static int draw(void) { state = state * 1664525u + 1013904223u; return (int)(state >> 16); }
static void *filled(size_t n) { char *p = malloc(n); for (size_t i = 0; i < n; i++) p[i] = (char)draw(); return p; }
int main(void) {
    for (int n_rows = 1; n_rows <= MAX_ROWS; n_rows++)
        for (int n_w = 1; n_w <= 3; n_w++)
            for (int n_blocks = 1; n_blocks <= 20; n_blocks += 6) {
                const size_t bs = 8 * (size_t)n_w;
                weights_8 *w = filled(sizeof *w * n_w * n_blocks);
                char *rows = filled(sizeof(row_1) * n_rows * n_blocks);
                row_block *x = malloc(sizeof *x * n_rows * n_blocks);
                float *s = malloc(sizeof *s * bs * n_rows);
                read_rows(n_blocks, rows, n_rows, x);
                edgespec_q4_0_rows(n_blocks, w, n_w, x, n_rows, s + OVER, bs);
                free(w); free(rows); free(x); free(s);
            }
    for (int n_rows = 1; n_rows <= TILE_ROWS; n_rows++)
        for (int n_blocks = 1; n_blocks <= 20; n_blocks += 6) {
            const size_t n = TILE_WEIGHTS * (size_t)n_blocks, m = n_rows * (size_t)n_blocks;
            char *four = filled(n * sizeof(block_q4_1)), *eight = filled(n * sizeof(block_q8_0));
            char *five = filled(n * sizeof(block_q5_0));
            char *with = filled(m * sizeof(block_q8_1)), *without = filled(m * sizeof(block_q8_0));
            float *s = malloc(sizeof *s * TILE_WEIGHTS * n_rows);
            edgespec_q4_1_tile(n_blocks, four, n_blocks * sizeof(block_q4_1), with, n_rows, s + OVER, TILE_WEIGHTS);
            edgespec_q5_0_tile(n_blocks, five, n_blocks * sizeof(block_q5_0), without, n_rows, s, TILE_WEIGHTS);
            edgespec_q8_0_tile(n_blocks, eight, n_blocks * sizeof(block_q8_0), without, n_rows, s, TILE_WEIGHTS);
            free(four); free(five); free(eight); free(with); free(without); free(s);
        }
    for (int n_rows = 1; n_rows <= K_ROWS; n_rows++)
        for (int n_w = 1; n_w <= 3; n_w++)
            for (int n_blocks = 1; n_blocks <= 4; n_blocks++) {
                const size_t m = n_rows * (size_t)n_blocks, n = n_w * (size_t)n_blocks, w = (size_t)n_w * K_COLUMNS;
                int8_t *qs = filled(m * K_BLOCK);
                int16_t *sums = filled(m * K_SUMS * sizeof *sums);
                float *d = filled(m * sizeof *d), *s = malloc(sizeof *s * w * n_rows);
                block_q4_k_8 *four = filled(n * sizeof *four);
                block_q6_k *six = filled((w - 1) * n_blocks * sizeof *six);
                const k_rows x = {qs, sums, d, n_rows};
                edgespec_q4_k_product(n_blocks, four, n_w * K_COLUMNS, &x, s + OVER, w);
                edgespec_q6_k_product(n_blocks, six, n_w * K_COLUMNS - 1, &x, s + OVER, w);
                free(qs); free(sums); free(d); free(s); free(four); free(six);
            }
    puts("done");
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("form", "over"), [*((form, 0) for form in FORMS), (_SLOWEST, 1)])
def test_no_byte_beyond_exactly_sized_buffers(form: building.InstructionSet, over: int, tmp_path: Path) -> None:
    command, _ = building._compiler()
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if subprocess.run([*command, *flags, probe, "-o", tmp_path / "probe"], capture_output=True).returncode:
        pytest.skip("the compiler has no address sanitizer")
    done = subprocess.run([_harness(form, over, tmp_path, flags)], capture_output=True, text=True, timeout=60)
    if over:
        assert "AddressSanitizer" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("over", [0, 1])
def test_valgrind_sees_no_byte_beyond_exactly_sized_buffers(over: int, tmp_path: Path) -> None:
    """The AVX2 form alone: valgrind does not know AVX-512."""
    check = ["valgrind", "-q", "--error-exitcode=3", str(_harness(building.SETS[-1], over, tmp_path, []))]
    done = subprocess.run(check, capture_output=True, text=True, timeout=120)
    if over:
        assert done.returncode == 3
        assert "Invalid write" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def _harness(form: building.InstructionSet, over: int, folder: Path, flags: list[str]) -> Path:
    """The program above, compiled for these kernels; outputs begin `over` numbers too late."""
    command, _ = building._compiler()
    harness, program = folder / "harness.c", folder / "harness"
    harness.write_text(_HARNESS, encoding="utf-8")
    sources = [harness, *(building.SOURCES / name for name in form.sources)]
    made = subprocess.run(
        [*command, "-std=c11", "-O1", "-g", *flags, *form.flags, f"-DOVER={over}", f"-I{building.SOURCES}", *sources,
         "-o", program],
        capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return program


def test_activations_that_only_infinity_gives_are_left_to_ggml(tmp_path: Path) -> None:
    """-128 times a negative weight is another number in the stock kernels, which negate the activation in 8 bits."""
    assert shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    code = tmp_path / "rows.c"
    code.write_text(
        '#include "rows.h"\nbool read(int n, const void *r, int k, row_block *x) { return read_rows(n, r, k, x); }\n'
    )
    library = tmp_path / "rows.so"
    includes = ["-shared", "-fPIC", *_SLOWEST.flags, f"-I{building.SOURCES}"]
    subprocess.run([*building._compiler()[0], *includes, str(code), "-o", str(library)], check=True)
    rows = ctypes.create_string_buffer(34 * 5)
    room = ctypes.create_string_buffer(40 * 5)
    read = ctypes.CDLL(str(library)).read
    read.restype = ctypes.c_bool
    assert read(1, rows, 5, room)
    for at in (8, 100, 135, 136 + 2, 136 + 33):  # within the four, and within the single row behind it
        changed = ctypes.create_string_buffer(rows.raw)
        changed[at] = b"\x80"
        assert not read(1, changed, 5, room)
