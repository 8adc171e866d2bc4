"""A mode against the oracle: the share, and a split of what is lost that leaves no rest; the oracle itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bench_fakes import FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from edgespec.bench import report, runner
from edgespec.bench.ceiling import LOSSES, Gap, ceiling
from edgespec.bench.modes import ORACLE, PLAIN, Mode, parse_modes
from edgespec.bench.oracle import OracleDrafter
from edgespec.bench.table import table
from edgespec.bench.workloads import Question
from edgespec.core.trace import RoundTrace
from edgespec.interfaces import Draft, Drafter, Limits, Sampling

PROMPT = 10
ROW_S = {1: 1.0, 2: 1.2, 3: 1.4, 4: 1.6, 5: 1.8}
OUTSIDE_S = 0.05
"""Of Python, each round."""


def chain(tokens: Sequence[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (0,) * n, (0.9,) * n) if n else Draft()


def written(mode: str, answer: Sequence[int], plays: Sequence[tuple[Sequence[int], int]], outside_s: float = OUTSIDE_S
            ) -> tuple[runner.Run, tuple[RoundTrace, ...]]:  # fmt: skip
    """A run and its rounds from (proposal, tokens of it to verify); rounds go on plainly to the answer's end."""
    done, rounds, todo = 1, [], list(plays)
    while done < len(answer):
        proposal, n_drafted = todo.pop(0) if todo else ((), 0)
        ahead = answer[done:]
        n = next((i for i in range(n_drafted) if i >= len(ahead) or proposal[i] != ahead[i]), n_drafted)
        made = tuple(ahead[: n + 1])
        seconds = ROW_S[1 + n_drafted]
        rounds.append(
            RoundTrace(
                PROMPT + done,
                made,
                "ngram" if proposal else None,
                chain(proposal),
                n_drafted=n_drafted,
                n_accepted=min(n, len(made) - 1),
                n_rows=1 + n_drafted,
                verify_s=seconds,
            )
        )
        done += len(made)
    decode_s = math.fsum(found.verify_s for found in rounds) + outside_s * len(rounds)
    run = runner.Run(
        "q", "g", 0, mode, 0, tokens=len(answer), decoded=len(answer) - 1, decode_s=decode_s, total_s=decode_s + 1,
        ttft_s=1.0, ids=tuple(answer), rounds=len(rounds),
    )  # fmt: skip
    return run, tuple(rounds)


def perfect(answer: Sequence[int]) -> tuple[runner.Run, tuple[RoundTrace, ...]]:
    """What the oracle writes: four right tokens a round."""
    right = [answer[first : first + 4] for first in range(1, len(answer), 5)]
    return written(ORACLE, answer, [(tokens, len(tokens)) for tokens in right])


def against(answer: Sequence[int], plays: Sequence[tuple[Sequence[int], int]]) -> Gap:
    made = [written("auto", answer, plays), perfect(answer), written(PLAIN, answer, ())]
    record = runner.Record([run for run, _ in made], rounds={("q", 0, run.mode): found for run, found in made})
    found = ceiling(record)
    assert found is not None
    assert set(found.gaps) == {"auto"}
    assert found.means["auto"][0].value == pytest.approx(found.gaps["auto"]["g"].share.value)
    return found.gaps["auto"]["g"]


ANSWER = tuple(range(100, 121))
BEST_S = 1.8 / 5
"""A token of the oracle, four drafts a round, Python aside."""


def test_a_mode_that_never_drafts_loses_for_want_of_proposals() -> None:
    gap = against(ANSWER, ())
    assert gap.share.value == pytest.approx((20 * BEST_S + 4 * OUTSIDE_S) / (20 * (1.0 + OUTSIDE_S)))
    assert gap.lost_ms_token == pytest.approx(
        {"no_proposal": 1000 * (1.0 - BEST_S), "wrong": 0.0, "too_short": 0.0, "too_long": 0.0, "python": 40.0}
    )
    assert gap.rounds == {"no_proposal": 20, "wrong": 0, "too_short": 0}


def test_a_wrong_proposal_is_wrong_and_its_rows_are_too_many() -> None:
    gap = against(ANSWER, [((7, 8, 9), 3)])
    lost = gap.lost_s
    assert lost["too_long"] == pytest.approx(1.6 - 1.0)
    assert lost["wrong"] == pytest.approx(1.0 - BEST_S)
    assert (gap.rejected, gap.unverified, gap.rounds["wrong"]) == (3, 0, 1)
    unverified = against(ANSWER, [((7, 8, 9), 0)])  # the controller saw it coming
    assert unverified.lost_s["too_long"] == 0.0
    assert unverified.lost_s["wrong"] == pytest.approx(1.0 - BEST_S)


def test_right_tokens_that_are_not_verified_are_too_short() -> None:
    gap = against(ANSWER, [(ANSWER[1:5], 1)])
    assert gap.lost_s["too_short"] == pytest.approx(1.2 - 2 * BEST_S)
    assert (gap.unverified, gap.rejected, gap.rounds["too_short"]) == (3, 0, 1)


def test_a_proposal_that_ends_early_wants_more() -> None:
    gap = against(ANSWER, [(ANSWER[1:3], 2)])
    assert gap.rounds == {"no_proposal": 18, "wrong": 0, "too_short": 0}
    assert gap.lost_s["no_proposal"] == pytest.approx(1.4 - 3 * BEST_S + 17 * (1.0 - BEST_S))


def test_the_oracle_against_itself_loses_nothing() -> None:
    gap = against(ANSWER, [(ANSWER[1 + 5 * i : 5 + 5 * i], 4) for i in range(4)])
    assert gap.share.value == pytest.approx(1.0)
    assert list(gap.lost_s.values()) == pytest.approx([0.0] * 5)


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=40),
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 4)), max_size=30),
)
def test_the_split_leaves_no_rest(answer: list[int], plays: list[tuple[list[int], int]]) -> None:
    cut = [(tuple(proposal), min(n, len(proposal))) for proposal, n in plays]
    gap = against(tuple(answer), cut)
    auto, oracle = written("auto", answer, cut)[0], perfect(answer)[0]
    assert math.fsum(gap.lost_s.values()) == pytest.approx(auto.decode_s - oracle.decode_s, abs=1e-9)
    assert gap.lost_s["too_long"] >= 0
    assert sum(gap.rounds.values()) == auto.rounds


def test_other_texts_marked_and_failed_runs_are_left_out() -> None:
    made = [written(PLAIN, ANSWER, ()), written("auto", ANSWER, ()), perfect(ANSWER)]
    other = replace(made[1][0], ids=(*ANSWER[:-1], 5))
    for run in (other, replace(made[1][0], mark="throttled"), replace(made[1][0], error="boom")):
        record = runner.Record([made[0][0], run, made[2][0]], rounds={("q", 0, "auto"): made[1][1]})
        found = ceiling(record)
        assert found is not None
        gap = found.gaps["auto"]["g"]
        assert (gap.pairs, gap.pairs_left_out, gap.share.value, gap.lost_ms_token) == (0, 1, None, {})


def test_without_an_oracle_there_is_no_ceiling() -> None:
    run, rounds = written("auto", ANSWER, ())
    assert ceiling(runner.Record([run], rounds={("q", 0, "auto"): rounds})) is None
    assert report.to_json(report.build(runner.Record([run])))["ceiling"] is None


def test_the_report_says_where_the_rest_is_lost() -> None:
    made = [written(PLAIN, ANSWER, ()), written("auto", ANSWER, [((7, 8), 2), (ANSWER[2:5], 1)]), perfect(ANSWER)]
    runs = [replace(run, round=number) for number in range(3) for run, _ in made]
    record = runner.Record(runs, rounds={("q", n, run.mode): found for n in range(3) for run, found in made})
    found = report.build(record)
    body = report.to_json(found)["ceiling"]["auto"]  # type: ignore[index]
    group = body["by_group"]["g"]
    assert set(group["lost_ms_token"]) == set(LOSSES)
    assert body["share"] == pytest.approx(group["share"])
    assert (group["pairs"], body["groups"]) == (3, 1)
    shown = table(found)
    assert "auto against the oracle" in shown
    assert f"{group['share']:.3f}" in shown
    assert f"{group['lost_ms_token']['wrong']:.2f}" in shown
    assert max(map(len, shown.splitlines())) <= 80


# --- the oracle ---


def test_the_oracle_knows_the_text_and_nothing_else() -> None:
    oracle = OracleDrafter([1, 2], [3, 4, 5])
    assert oracle.propose([1, 2, 3], 8) == Draft((4, 5), (-1, 0), (0, 0), (1.0, 1.0))
    assert oracle.propose([1, 2, 3], 1).tokens == (4,)
    assert oracle.propose([1, 2, 9], 8).tokens == ()
    assert oracle.propose([1, 2, 3, 4, 5], 8).tokens == ()
    assert oracle.propose([1, 2, 3], 0).tokens == ()
    assert oracle.propose([1, 2], 2).tokens == (3, 4)  # the text may have shrunk


class Listening(FakeEngine):
    """Remembers the drafters it was given."""

    given: list[Drafter]

    def stream(self, prompt, sampling=None, limits=None, *, drafter=None, session=None):  # type: ignore[no-untyped-def]
        if not isinstance(drafter, str):
            self.given.append(drafter)
        return super().stream(prompt, sampling, limits, drafter=drafter, session=session)


def speed(drafter: str, limits: Limits) -> float:
    return 0.01


def test_the_oracle_is_told_what_plain_wrote() -> None:
    engine = Listening(speed)
    engine.given = []
    questions = [Question(str(i), "g", "?" * i) for i in range(4)]
    plan = runner.Plan(questions, parse_modes("auto,oracle", ("auto", "none")), Sampling(), max_tokens=6)
    record = runner.run_all(plan, lambda: engine, runner.Record(), clock=engine.clock)
    assert [run.error for run in record.runs] == [None] * 16
    assert len(engine.given) == 5  # one of them warms up
    for question, oracle in zip(questions, engine.given[1:], strict=True):
        prompt = runner.prompt_of(engine, question)
        assert oracle.propose([*prompt, 1], 9).tokens == (2, 3, 4, 5, 6)
    assert all(len({run.mode for run in record.runs[i : i + 4]}) == 4 for i in range(0, 16, 4))


def test_without_plains_text_the_oracle_fails_and_the_others_go_on() -> None:
    def fail(drafter: str) -> None:
        if drafter == "none":
            raise RuntimeError("no")

    engine = FakeEngine(speed, fail=fail)
    modes = [Mode(PLAIN, "none"), Mode("auto", "auto"), Mode(ORACLE, ORACLE)]
    record = runner.run_all(
        runner.Plan([Question("q", "g", "?")], modes, Sampling(), max_tokens=6), lambda: engine, runner.Record(),
        clock=engine.clock,
    )  # fmt: skip
    errors = {run.mode: run.error for run in record.runs}
    assert errors["auto"] is None
    assert errors[PLAIN] == "RuntimeError: no"
    assert errors[ORACLE] == "RuntimeError: plain decoding wrote no answer that could be known"
