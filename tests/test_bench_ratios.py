"""From runs to ratios: a planted speed-up is found, noise is seen as noise, failures never become numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from bench_fakes import run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, orders, parse_modes
from edgespec.bench.ratios import aggregate, geomean
from edgespec.bench.runner import Run
from edgespec.errors import ConfigError


def planted(ratio: float, noise: float, seed: int = 0, rows: int = 5, rounds: int = 3) -> list[Run]:
    """Runs on a noisy machine whose `auto` is `ratio` times as fast; rows differ in length and speed."""
    rng = np.random.default_rng(seed)
    runs = []
    for row in range(rows):
        n, base = 40 + 20 * row, 0.005 * (1 + 0.2 * row)
        for number in range(rounds):
            for mode, factor in ((PLAIN, 1.0), ("auto", ratio), (PLAIN_AGAIN, 1.0)):
                s = (n - 1) * base / factor * float(np.exp(rng.normal(0, noise)))
                runs.append(run_of(mode, question=f"q{row}", round_=number, n=n, s=s))
    return runs


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.5, 2.2])
def test_a_planted_ratio_is_recovered(ratio: float) -> None:
    cells = aggregate(planted(ratio, 0.0))["g"]
    auto = cells["auto"].ratio
    assert auto.value == pytest.approx(ratio)
    assert auto.low == pytest.approx(ratio)
    assert cells["auto"].ratio_sum == pytest.approx(ratio)
    assert cells["auto"].ratio_pair == pytest.approx(ratio)
    noisy = aggregate(planted(ratio, 0.02))["g"]["auto"].ratio
    assert noisy.value == pytest.approx(ratio, rel=0.03)
    assert noisy.low is not None
    assert noisy.high is not None
    assert noisy.low < ratio < noisy.high


def test_the_interval_of_the_second_plain_arm_covers_one() -> None:
    covered = 0
    for seed in range(60):
        noise = aggregate(planted(1.2, 0.05, seed))["g"][PLAIN_AGAIN].ratio
        covered += noise.low is not None and noise.high is not None and noise.low <= 1.0 <= noise.high
    assert covered >= 50  # of 60: a bootstrap of few pairs is a little narrow


def test_one_stalled_run_does_not_decide() -> None:
    runs = planted(1.3, 0.01)
    stalled = next(i for i, run in enumerate(runs) if run.mode == "auto")
    runs[stalled] = replace(runs[stalled], decode_s=runs[stalled].decode_s * 40)
    cell = aggregate(runs)["g"]["auto"]
    assert cell.ratio.value == pytest.approx(1.3, rel=0.03)
    assert cell.ratio_sum is not None
    assert cell.ratio_sum < 0.8


def test_the_same_runs_give_the_same_interval() -> None:
    runs = planted(1.1, 0.05)
    assert aggregate(runs, 3) == aggregate(runs, 3)
    other = [run_of(mode, group="h") for mode in (PLAIN, "auto")]
    assert aggregate(runs + other, 3)["g"] == aggregate(runs, 3)["g"]


def test_a_failed_run_takes_its_pair_out() -> None:
    runs = planted(1.5, 0.0)
    broken = next(i for i, run in enumerate(runs) if run.mode == PLAIN)
    runs[broken] = Run("q0", "g", 0, PLAIN, 0, error="boom")
    cells = aggregate(runs)["g"]
    assert (cells[PLAIN].failed, cells[PLAIN].runs) == (1, 15)
    assert (cells["auto"].failed, cells["auto"].pairs, cells["auto"].pairs_left_out) == (0, 14, 1)
    assert cells["auto"].ratio.value == pytest.approx(1.5)
    everything = [replace(run, error="boom") if run.mode == "auto" else run for run in runs]
    gone = aggregate(everything)["g"]["auto"]
    assert (gone.failed, gone.tok_s, gone.ratio.value, gone.e2e.value) == (15, None, None, None)


def test_answers_of_one_token_have_no_decode_ratio() -> None:
    runs = [run_of(mode, n=1, s=0.0, round_=r) for mode in (PLAIN, "auto") for r in range(3)]
    cell = aggregate(runs)["g"]["auto"]
    assert (cell.tok_s, cell.ratio.value, cell.pairs, cell.pairs_left_out) == (None, None, 0, 3)
    assert cell.e2e.value == pytest.approx(1.0)
    assert geomean([cell.ratio]).value is None


def test_one_pair_has_no_interval() -> None:
    ratio = aggregate([run_of(PLAIN), run_of("auto", s=0.5)])["g"]["auto"].ratio
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (None, None)


def test_geometric_mean_over_groups() -> None:
    runs = planted(2.0, 0.01)
    runs += [replace(run, group="h") for run in planted(0.5, 0.01, seed=1)]
    cells = aggregate(runs)
    mean = geomean([cells["g"]["auto"].ratio, cells["h"]["auto"].ratio])
    assert mean.value == pytest.approx(1.0, rel=0.02)
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low < 1.0 < mean.high


@given(st.integers(2, 9))
def test_the_rotation_is_balanced(n: int) -> None:
    found = orders(n)
    assert all(sorted(order) == list(range(n)) for order in found)
    for place in range(n):
        assert set(Counter(order[place] for order in found).values()) == {len(found) // n}
    after = Counter((a, b) for order in found for a, b in pairwise(order))
    assert len(after) == n * (n - 1)
    assert len(set(after.values())) == 1


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(1, 6), st.integers(1, 4))
def test_any_shape_of_runs(ratio: float, rows: int, rounds: int) -> None:
    found = aggregate(planted(ratio, 0.0, rows=rows, rounds=rounds))["g"]["auto"]
    assert found.ratio.value == pytest.approx(ratio)
    assert found.pairs == rows * rounds


def test_modes() -> None:
    names = ("auto", "none", "ngram", "tri-gram")
    modes = parse_modes("plain, auto,fixed-03,auto,none,ngram-4,tri-gram,tri-gram-2,oracle,oracle-3", names)
    assert [(m.name, m.drafter, m.fixed_draft) for m in modes] == [
        ("plain", "none", None), ("auto", "auto", None), ("fixed-3", "auto", 3), ("ngram-4", "ngram", 4),
        ("tri-gram", "tri-gram", None), ("tri-gram-2", "tri-gram", 2), ("oracle", "oracle", None),
        ("oracle-3", "oracle", 3), ("plain2", "none", None),
    ]  # fmt: skip
    assert [m.name for m in modes if m.knows_the_text] == ["oracle", "oracle-3"]
    for bad in ("fast", "fixed-0", "fixed-", "fixed-99", "fixed-²", "none-3", "plain-3", "ngram-", "-3", "3"):
        with pytest.raises(ConfigError, match="choose from plain, auto, ngram, oracle, fixed-N, NAME-N"):
            parse_modes(bad, ("auto", "none", "ngram"))


def test_the_ratio_without_loops() -> None:
    """What copying gains on a loop says nothing about text that people want."""
    runs = []
    for question, ids, s in (("loop", (1, 2) * 50, 0.25), ("text", tuple(range(100)), 1.0)):
        for number in range(2):
            runs += [replace(run_of(mode, question=question, round_=number, s=t), ids=ids) for mode, t in (
                (PLAIN, 1.0), ("auto", s))]  # fmt: skip
    cell = aggregate(runs)["g"]["auto"]
    assert cell.ratio.value == pytest.approx(2 / 1.25)
    assert cell.ratio_varied.value == pytest.approx(1.0)
    only = aggregate([run for run in runs if run.question_id == "loop"])["g"]["auto"]
    assert only.ratio.value == pytest.approx(4.0)
    assert only.ratio_varied.value is None


def test_warm_runs_are_a_comparison_of_their_own() -> None:
    runs = []
    for number in range(2):
        for mode, cold, warm in ((PLAIN, 1.0, 0.9), ("auto", 1.0, 0.3)):
            runs.append(run_of(mode, round_=number, s=cold))
            runs.append(replace(run_of(mode, round_=number, s=warm), warm=True, ttft_s=0.01, drafted=10, accepted=9))
    cell = aggregate(runs)["g"]["auto"]
    assert (cell.runs, cell.pairs, cell.acceptance, cell.ttft_s) == (2, 2, None, 0.1)
    assert cell.ratio.value == pytest.approx(1.0)
    assert cell.warm is not None
    assert (cell.warm.runs, cell.warm.acceptance, cell.warm.ttft_s) == (2, 0.9, 0.01)
    assert cell.warm.ratio.value == pytest.approx(3.0)
