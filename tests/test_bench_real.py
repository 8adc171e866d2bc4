"""The benchmark on a small real model: repeats are cold unless asked warm, the oracle is right, rounds add up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf_maker
import pytest
from bench_fakes import frozen_heap

from edgespec.bench import report, runner
from edgespec.bench.modes import ORACLE, PLAIN, Mode, parse_modes
from edgespec.bench.runner import Run
from edgespec.bench.workloads import Question
from edgespec.cli import main
from edgespec.config import EngineConfig
from edgespec.draft import NAMES
from edgespec.engine import Engine
from edgespec.interfaces import NO_DRAFT, Draft, Limits, Sampling

QUESTIONS = (
    Question("cat", "g", "the cat sat on the mat, the cat sat on the mat, the cat"),
    Question("abc", "h", "abcabcabcabcabcabc"),
)


N_TOKENS = 60


@dataclass
class Rememberer:
    """Proposes what it saw written before: within an answer nothing, in a second one all of it."""

    name: str = "remember"
    inline: bool = True
    seen: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        self.threads.add(threading.current_thread().name)
        text = list(context)
        ahead = tuple(self.seen[len(text) : len(text) + limit]) if self.seen[: len(text)] == text else ()
        if len(text) > len(self.seen):
            self.seen = text
        n = len(ahead)
        return Draft(ahead, tuple(range(-1, n - 1)), (0,) * n, (0.9,) * n) if n else NO_DRAFT

    def close(self) -> None:
        pass


MODES = (
    *parse_modes("auto,ngram-4,oracle", NAMES)[:-1],
    Mode("remember", "remember", fixed_draft=4, make=Rememberer),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        path: Path = gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")
        with Engine.open(path, EngineConfig(n_ctx=512, threads=1)) as opened, frozen_heap():
            yield opened


def runs_of(engine: Engine, *, rounds: int = 1, warm: bool = False, sampling: Sampling | None = None) -> runner.Record:
    plan = runner.Plan(QUESTIONS, MODES, sampling or Sampling(), rounds, N_TOKENS, ignore_eog=True, warm=warm)
    record = runner.run_all(plan, lambda: engine, runner.Record(), sensors=engine.machine.monitor.latest)
    assert [run.error for run in record.runs] == [None] * len(record.runs)
    return record


def of(record: runner.Record, mode: str, question: str, *, warm: bool = False) -> list[Run]:
    return [run for run in record.runs if (run.mode, run.question_id, run.warm) == (mode, question, warm)]


def test_repeats_know_nothing_of_the_answer(engine: Engine) -> None:
    few_letters = Sampling(temperature=0.8, logit_bias=dict.fromkeys(b"abc", 50.0))  # so that n-grams repeat
    record = runs_of(engine, rounds=3, sampling=few_letters)
    for question in ("cat", "abc"):
        ngram = of(record, "ngram-4", question)
        assert len({(run.drafted, run.accepted, run.cached) for run in ngram}) == 1
        remember = of(record, "remember", question)
        assert [(run.drafted, run.accepted) for run in remember] == [(0, 0)] * 3
        texts = {run.ids for run in record.runs if run.question_id == question}
        assert len(texts) == 1
    assert of(record, "ngram-4", "cat")[0].accepted > 0
    assert report.build(record).cells["g"]["auto"].warm is None


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5)])
def test_warm_runs_find_the_prompt_cached_and_what_the_session_learned(engine: Engine, sampling: Sampling) -> None:
    record = runs_of(engine, rounds=2, warm=True, sampling=sampling)
    for question in ("cat", "abc"):
        cold, warm = (of(record, "remember", question, warm=again) for again in (False, True))
        assert [run.accepted for run in cold] == [0, 0]  # the second round's session is a new one
        assert all(run.accepted > 20 for run in warm)
        plain = of(record, PLAIN, question, warm=True)
        assert all(run.cached == of(record, PLAIN, question)[0].cached + run.cached > 10 for run in plain)
    found = report.build(record)
    cell = found.cells["h"]["remember"]
    assert cell.warm is not None
    assert (cell.runs, cell.warm.runs, cell.warm.failed, cell.accepted) == (2, 2, 0, 0)
    assert cell.warm.acceptance is not None
    assert cell.warm.acceptance > 0.5


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5)])
def test_the_oracle_is_never_wrong_and_the_split_is_whole(engine: Engine, sampling: Sampling) -> None:
    record = runs_of(engine, sampling=sampling)
    for question in ("cat", "abc"):
        (oracle,) = of(record, ORACLE, question)
        assert oracle.accepted == oracle.drafted
        assert oracle.drafter == ORACLE
    found = report.build(record).ceiling
    assert found is not None
    for mode in ("auto", "ngram-4", "remember"):
        for group, question in (("g", "cat"), ("h", "abc")):
            gap, (run,), (best,) = found.gaps[mode][group], of(record, mode, question), of(record, ORACLE, question)
            assert (gap.pairs, gap.pairs_left_out, gap.tokens) == (1, 0, N_TOKENS - 1)
            assert sum(gap.lost_s.values()) == pytest.approx(run.decode_s - best.decode_s)
            assert sum(gap.rounds.values()) == run.rounds
            assert gap.rejected == run.drafted - run.accepted
    assert {key[2] for key in record.rounds} == {mode.name for mode in MODES}


def test_an_inline_drafter_has_no_thread_of_its_own(engine: Engine) -> None:
    threads = []
    for inline in (True, False):
        drafter = Rememberer(inline=inline)
        for _ in engine.stream(engine.prompt("abc"), Sampling(), Limits(8, ignore_eog=True), drafter=drafter):
            pass
        threads.append(drafter.threads)
    assert threads[0]
    assert threads[1] == {"drafter-remember"}
    assert threads[0].isdisjoint(threads[1])


def test_rounds_are_kept_only_for_a_ceiling(engine: Engine) -> None:
    plan = runner.Plan(QUESTIONS[:1], parse_modes("auto", NAMES), Sampling(), max_tokens=8)
    assert runner.run_all(plan, lambda: engine, runner.Record()).rounds == {}


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, workload, out = gguf_maker.make(tmp_path / "llama.gguf"), tmp_path / "w.jsonl", tmp_path / "out.json"
    workload.write_text('{"question_id": 1, "group": "g", "turns": ["abcabc"]}\n')
    args = ["--workload", str(workload), "--modes", "auto,ngram-2,oracle", "--warm", "--max-tokens", "12"]
    more = ["--ignore-eog", "--ctx", "256", "--threads", "1", "--json", str(out)]
    assert main.run(["bench", str(model), *args, *more]) == 0
    found = json.loads(out.read_text("utf-8"))
    assert found["failures"] == []
    assert [run["mode"] for run in found["runs"][::2]] == ["plain", "auto", "plain2", "ngram-2", "oracle"]
    assert found["ceiling"]["auto"]["by_group"]["g"]["tokens"] == 11
    assert "1" in found["pass_s"]
    assert found["stamp"]["tuned"] is None
    assert found["groups"]["g"]["auto"]["warm"]["runs"] == 1
    shown = capsys.readouterr().out
    assert "auto against the oracle" in shown
    assert max(map(len, shown.splitlines())) <= 80
