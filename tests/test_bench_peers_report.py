"""The comparison with other programs in numbers: ratios to our plain decoding and to their own, and the three lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from bench_fakes import run_of

from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.bench.peers.arms import AUTO, AUTO_STOCK, choose
from edgespec.bench.peers.match import Match
from edgespec.bench.peers.summary import against, summarise, table, to_json, verdict

SECONDS = {
    # By group: seconds for 100 tokens.
    PLAIN: (1.0, 2.0), AUTO: (0.8, 1.0), PLAIN_AGAIN: (1.0, 2.0), "bare loop": (0.9, 1.8),
    "server plain": (1.25, 2.5), "server mod": (1.0, 2.5), "server mod 8/3/15": (2.5, 0.9),
}  # fmt: skip
CHOSEN = choose("bare,server mod")


def measured(without: Sequence[tuple[str, str]] = ()) -> Match:
    """Two questions and two rounds in each of two groups; `without`: (group, arm) that failed there."""
    match = Match()
    for name, seconds in SECONDS.items():
        for group, s in zip(("g1", "g2"), seconds, strict=True):
            for question in ("q1", "q2"):
                for number in range(2):
                    ident = f"{group}{question}"
                    run = run_of(name, question=ident, group=group, round_=number, s=s)
                    if (group, name) in without:
                        run = type(run)(ident, group, number, name, 0, error="crashed")
                    else:
                        match.texts[ident, number, name] = "other" if (name, group) == ("server mod", "g1") else "text"
                    match.runs.append(run)
    return match


def test_the_three_lines() -> None:
    match = measured()
    summary = summarise(match, CHOSEN)
    expected = {name: ((1.0 / s[0]) * (2.0 / s[1])) ** 0.5 for name, s in SECONDS.items()}
    for name, value in expected.items():
        assert summary.means[name][0].value == pytest.approx(value), name
    assert summary.best == "bare loop"
    assert summary.auto_to_best.value == pytest.approx((0.9 / 0.8 * 1.8 / 1.0) ** 0.5)
    assert summary.worst is not None
    assert summary.worst[:2] == ("g2", "server mod 8/3/15"), "the group's own fastest peer counts there"
    assert summary.worst[2].value == pytest.approx(0.9)
    assert summary.gain.value == pytest.approx((1.25 * 2.0) ** 0.5)
    assert summary.best_gain is not None
    assert summary.best_gain[0] == "server mod 8/3/15"
    assert summary.best_gain[1].value == pytest.approx((0.5 * 2.5 / 0.9) ** 0.5)
    assert verdict(summary) == [
        "edgespec auto against bare loop, the fastest peer by geometric mean: 1.423 (1.423..1.423)",
        "Worst group against its fastest peer: g2, 0.900 (0.900..0.900) against server mod 8/3/15",
        "Gain over own plain decoding: edgespec 1.581 (1.581..1.581); the best of the peers, server mod 8/3/15, "
        "1.179 (1.179..1.179)",
    ]


def test_the_ratio_to_ones_own_plain_decoding() -> None:
    match = measured()
    line = summarise(match, CHOSEN).groups["g1"]["server mod"]
    assert line.own.value == pytest.approx(1.25)
    assert line.cell.ratio.value == pytest.approx(1.0)
    assert (line.same, line.compared) == (0, 4)
    assert against(match.runs, AUTO, "server mod")["g2"].value == pytest.approx(2.5)
    assert against(match.runs, AUTO, "nobody") == {}


def test_the_kernels_against_those_of_ggml() -> None:
    match = measured()
    assert summarise(match, CHOSEN).kernels == {AUTO: {}, PLAIN: {}}, "unknown where those arms took no part"
    for group, seconds in (("g1", 1.0), ("g2", 1.25)):
        match.runs.extend(run_of(AUTO_STOCK, question=f"{group}q{n}", group=group, s=seconds) for n in (1, 2))
    summary = summarise(match, CHOSEN)
    assert {group: ratio.value for group, ratio in summary.kernels[AUTO].items()} == pytest.approx(
        {"g1": 1.25, "g2": 1.25}
    )
    line = next(
        line
        for line in table(summary, match).splitlines()
        if line.split()[:2] == ["geometric", "mean"] and "1.25" in line
    )
    assert line.split()[2] == "1.250"
    assert to_json(summary, match, {})["kernels_to_ggml"]["auto"]["g2"]["ratio"] == pytest.approx(1.25)  # type: ignore[index]


def test_a_peer_that_failed_in_a_group_has_no_mean() -> None:
    match = measured([("g1", "bare loop"), ("g1", "server plain")])
    summary = summarise(match, CHOSEN)
    assert summary.means["bare loop"][0].value is None
    assert summary.best == "server mod 8/3/15"
    assert summary.best_gain is None, "gains need the peers' own plain decoding in every group"
    shown = table(summary, match)
    assert "4 failed" in shown
    assert "FAILED bare loop, 4 times: crashed" in shown
    assert "of the peers none is known" in shown


def test_without_any_peer_nothing_is_claimed() -> None:
    match = measured([(group, arm.name) for group in ("g1", "g2") for arm in CHOSEN if not arm.ours])
    summary = summarise(match, CHOSEN)
    assert (summary.best, summary.worst, summary.best_gain) == (None, None, None)
    assert verdict(summary) == ["No peer has a ratio in every group: nothing to compare with."]


def test_the_json_holds_everything_and_null_for_what_is_unknown() -> None:
    match = measured([("g1", "bare loop")])
    found = json.loads(json.dumps(to_json(summarise(match, CHOSEN), match, {"threads": 2}), allow_nan=False))
    assert found["threads"] == 2
    assert found["geomean"]["bare loop"]["ratio"] is None
    assert found["groups"]["g1"]["bare loop"]["failed"] == 4
    assert found["groups"]["g1"][AUTO]["ratio"] == pytest.approx(1.25)
    assert found["groups"]["g2"]["server mod"]["own_ratio"] == pytest.approx(1.0)
    assert found["summary"]["best_peer"] == "server mod 8/3/15"
    assert len(found["runs"]) == len(match.runs)
    assert {run["text"] for run in found["runs"] if run["error"]} == {None}
