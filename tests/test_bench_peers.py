"""The comparison with other programs: workers that crash or spin harm nobody, turns are fair, caches are cold."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from edgespec.bench.modes import PLAIN
from edgespec.bench.peers import install, llama_server
from edgespec.bench.peers.arms import OURS, PEERS, Arm, by_process, choose
from edgespec.bench.peers.match import Contest, Match, play, seats
from edgespec.bench.peers.process import PeerError, Revived, Worker
from edgespec.bench.peers.summary import summarise, table
from edgespec.bench.workloads import Question
from edgespec.device.load import Load, LoadReader
from edgespec.errors import ConfigError

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "tests/peer_worker.py")]
ASK = {"question": "well", "prompt": [1], "max_tokens": 4}


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts workers that are ended with the test."""
    started: list[Worker] = []

    def new(timeout_s: float = 60.0, **settings: object) -> Worker:
        started.append(Worker(COMMAND, settings, timeout_s))
        return started[-1]

    yield new
    for worker in started:
        worker.close()


def test_replies_are_kept_apart_from_what_libraries_print(start: Callable[..., Worker]) -> None:
    worker = start(model="m")
    assert worker.about["version"] == "fake 1"
    assert [worker.ask(ASK)["n"] for _ in range(3)] == [1, 2, 3]
    assert worker.ask(ASK)["model"] == "m"


def test_a_request_that_fails_costs_only_itself(start: Callable[..., Worker]) -> None:
    worker = start()
    with pytest.raises(PeerError, match=r"^RuntimeError: out of cells$"):
        worker.ask({**ASK, "question": "raise"})
    assert worker.ask(ASK)["tokens"] == 4


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("abort", r"^ended by SIGABRT: GGML_ASSERT\(n > 0\) failed$"),
        ("leave", "^ended with code 3"),
        ("hang", "within"),
    ],
)
def test_how_a_worker_ended_is_said(start: Callable[..., Worker], word: str, why: str) -> None:
    worker = start(0.5 if word == "hang" else 60.0)
    with pytest.raises(PeerError, match=why):
        worker.ask({**ASK, "question": word})
    assert worker.dead
    with pytest.raises(PeerError):
        worker.ask(ASK)


def test_what_cannot_be_opened_or_started_is_said() -> None:
    with pytest.raises(PeerError, match=r"^ValueError: no such model$"):
        Worker(COMMAND, {"refuse": True})
    with pytest.raises(PeerError, match="does not start: No such file"):
        Worker(["/no/such/program"], {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processor time of a process is read on Linux only")
def test_a_worker_that_spins_takes_nothing_while_it_is_not_asked(start: Callable[..., Worker]) -> None:
    worker = start(spin=True)
    for _ in range(2):
        used = [worker.cpu_s()]
        for _ in range(100):  # the signal takes a moment to stop it
            time.sleep(0.02)
            used.append(worker.cpu_s())
            if used[-1] == used[-2]:
                break
        time.sleep(0.1)
        assert worker.cpu_s() == used[-1]
        assert worker.ask(ASK)["tokens"] == 4
    after = worker.cpu_s()
    assert after is not None
    assert used[-1] is not None
    assert after > used[-1], "it does not run when asked either"


def test_a_crashed_peer_comes_back_but_not_for_ever() -> None:
    n_started = 0

    def start() -> Worker:
        nonlocal n_started
        n_started += 1
        return Worker(COMMAND, {})

    peer = Revived(start, n_lives=2)
    try:
        assert n_started == 0
        assert peer.cpu_s() is None
        assert peer.ask(ASK)["n"] == 1
        for _ in range(2):
            with pytest.raises(PeerError, match="SIGABRT"):
                peer.ask({**ASK, "question": "abort"})
        assert n_started == 2
        with pytest.raises(PeerError, match="SIGABRT"):
            peer.ask(ASK)
        assert n_started == 2
    finally:
        peer.close()


def test_peers_are_chosen_with_their_plain_decoding() -> None:
    assert choose(None) == (*OURS, *PEERS)
    assert choose("none") == OURS
    assert [arm.name for arm in choose("server mod, bare")][len(OURS) :] == [
        "bare loop", "server plain", "server mod", "server mod 8/3/15",
    ]  # fmt: skip
    names = [arm.name for arm in choose(None)]
    assert len(set(names)) == len(names)
    assert {arm.plain for arm in choose(None)} <= set(names)
    for wrong in ("serve me", "", "bare,"):
        with pytest.raises(ConfigError, match="choose from bare loop"):
            choose(wrong)


def test_only_edgespecs_arms_share_a_process() -> None:
    groups = by_process(choose(None))
    assert [group for group in groups if group[0].ours] == [list(OURS[:3]), list(OURS[3:])]  # one a setting
    assert [len(group) for group in groups if not group[0].ours] == [1] * len(PEERS)


def test_llama_servers_worker_runs_with_the_python_that_has_it() -> None:
    server = choose("server plain")[-1]
    assert server.command(Path("/venv/bin/python"))[0] == "/venv/bin/python"
    with pytest.raises(ConfigError, match="xllamacpp is not installed"):
        server.command(None)
    assert OURS[0].command(None)[0] == sys.executable


@dataclass
class FakeSeat:
    """Answers at once; what it was asked goes to a common list."""

    name: str
    asked: list[tuple[str, Mapping[str, object]]]
    fails: str | None = None
    cpu: list[float] = field(default_factory=lambda: [0.0])

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.asked.append((self.name, request))
        if self.fails == "ctrl-c" and len(self.asked) > 8:
            raise KeyboardInterrupt
        if self.fails == "short":
            return {"tokens": 3}
        if self.fails is not None and self.fails != "ctrl-c":
            raise PeerError(self.fails)
        n = request["max_tokens"]
        return {"tokens": n, "decoded": 1, "decode_s": 0.5, "ttft_s": 0.1, "drafted": 2, "accepted": 1, "text": "t"}

    def cpu_s(self) -> float | None:
        self.cpu[0] += 0.25
        return self.cpu[0]


ARMS = choose("bare,server plain")
QUESTIONS = (Question("a", "chat", "A?"), Question("b", "rag", "B?", max_tokens=7))
PROMPTS = {"a": [1, 2], "b": [3]}


def contest(rounds: int = 2, **fails: str) -> tuple[Match, list[tuple[str, Mapping[str, object]]]]:
    asked: list[tuple[str, Mapping[str, object]]] = []
    seated = {arm.name: FakeSeat(arm.name, asked, fails.get(arm.module)) for arm in ARMS}
    return play(Contest(QUESTIONS, ARMS, rounds, 50), seated, PROMPTS, Match()), asked[len(ARMS) :]


def test_every_arm_gets_the_same_prompts_and_budgets_in_turns_that_rotate() -> None:
    n_arms = len(ARMS)
    match, asked = contest(rounds=n_arms)
    assert len(match.runs) == len(asked) == n_arms * len(QUESTIONS) * n_arms
    for name, request in asked:
        assert (request["prompt"], request["max_tokens"]) in [([1, 2], 50), ([3], 7)]
        arm = next(arm for arm in ARMS if arm.name == name)
        assert request.items() >= dict(arm.request).items()
    places = Counter((run.mode, run.place) for run in match.runs)
    assert set(places.values()) == {len(QUESTIONS)}, "an arm is more often at one place than at another"
    assert {run.error for run in match.runs} == {None}


def test_a_peer_that_fails_is_recorded_and_the_others_go_on() -> None:
    match, _ = contest(bare="ended by SIGABRT", llama_server="short")
    errors = {run.mode: run.error for run in match.runs}
    assert errors["bare loop"] == "ended by SIGABRT"
    assert "a reply that says too little: KeyError: 'ttft_s'" in str(errors["server plain"])
    assert [errors[arm.name] for arm in OURS] == [None] * len(OURS)
    assert {mode for _, _, mode in match.texts} == {arm.name for arm in OURS}


def test_ctrl_c_keeps_what_is_done() -> None:
    match, _ = contest(ours="ctrl-c")
    assert match.partial
    assert 0 < len(match.runs) < 20
    assert "PARTIAL" in table(summarise(match, ARMS), match)


def test_time_that_idle_workers_took_is_told() -> None:
    match, _ = contest(rounds=1)
    # Each of the others' seats takes a quarter of a second between two looks.
    assert match.idle_cpu_s == pytest.approx(0.25 * (len(ARMS) - 1) * len(match.runs))
    assert "NOT QUIET: idle workers took" in table(summarise(match, ARMS), match)
    match.idle_cpu_s = 0.0
    assert "idle workers" not in table(summarise(match, ARMS), match)
    match.idle_cpu_s = None
    assert "is not known here" in table(summarise(match, ARMS), match)


class BusyLoad:
    """Says that so many cores' worth of time was taken on the whole machine beside this process."""

    def __init__(self, cores: float | None) -> None:
        self.cores = cores

    def read(self, now_s: float) -> Load:
        return Load(self.cores)


@pytest.mark.parametrize(("cores", "marked"), [(1e9, True), (0.0, False), (None, False)])
def test_runs_beside_other_programs_give_no_ratio(cores: float | None, *, marked: bool) -> None:
    asked: list[tuple[str, Mapping[str, object]]] = []
    seated = {arm.name: FakeSeat(arm.name, asked, None) for arm in ARMS}
    match = play(Contest(QUESTIONS, ARMS, 1, 50), seated, PROMPTS, Match(load=cast(LoadReader, BusyLoad(cores))))
    summary = summarise(match, ARMS)
    assert {run.mark is not None for run in match.runs} == {marked}
    assert (summary.gain.value is None) is marked
    assert ("give no ratio: other programs" in table(summary, match)) is marked


@pytest.fixture
def xllamacpp(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """A stand-in for the package; returns the servers that were made, oldest first."""
    made: list[SimpleNamespace] = []

    def common_params() -> SimpleNamespace:
        parts = {name: SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return SimpleNamespace(**parts, speculative=SimpleNamespace(ngram_mod=SimpleNamespace(), types=None))

    def server(params: SimpleNamespace) -> SimpleNamespace:
        def complete(request: Mapping[str, Any]) -> dict[str, Any]:
            new.asked.append(request)
            n = request["n_predict"]
            times = {"cache_n": params.cached, "predicted_n": n, "predicted_ms": 500.0, "prompt_ms": 40.0, "draft_n": 6}
            return {"choices": [{"text": "t", "finish_reason": "length"}], "timings": times}

        params.cached = 0
        new = SimpleNamespace(params=params, asked=[], handle_completions=complete)
        made.append(new)
        return new

    module = ModuleType("xllamacpp")
    types = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_MOD="mod", COMMON_SPECULATIVE_TYPE_NONE="none")
    vars(module).update(CommonParams=common_params, Server=server, common_speculative_type=types)
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return made


def test_llama_server_starts_every_answer_cold(xllamacpp: list[SimpleNamespace]) -> None:
    arm = next(arm for arm in PEERS if arm.name == "server mod 8/3/15")
    worker = llama_server.LlamaServer({"model": "m.gguf", "n_ctx": 512, "threads": 2, **arm.settings})
    replies = [worker.answer({"prompt": [1, 5, 6], "max_tokens": 11}) for _ in range(2)]
    assert len(xllamacpp) == 3, "a server that had answered before was asked again"
    params, asked = xllamacpp[-1].params, xllamacpp[-1].asked
    assert (params.model.path, params.n_ctx, params.n_parallel) == ("m.gguf", 512, 1)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 2)
    assert (params.cache_prompt, params.cache_ram_mib) == (False, 0)
    assert params.speculative.types == ["mod"]
    assert vars(params.speculative.ngram_mod) == {"n_match": 8, "n_min": 3, "n_max": 15}
    assert asked[-1]["prompt"] == [1, 5, 6], "tokens, so that no start token is added"
    assert (asked[-1]["n_predict"], asked[-1]["temperature"], asked[-1]["cache_prompt"]) == (11, 0.0, False)
    assert replies[0] == replies[1]
    # 11 tokens, and its clock starts with the first.
    assert {name: replies[0][name] for name in ("tokens", "decoded", "decode_s", "ttft_s", "drafted", "accepted")} == {
        "tokens": 11, "decoded": 10, "decode_s": 0.5, "ttft_s": 0.04, "drafted": 6, "accepted": 0,
    }  # fmt: skip


def test_an_answer_from_a_warm_cache_is_refused(
    xllamacpp: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = llama_server.LlamaServer({"model": "m", "n_ctx": 9, "threads": 1, "type": "none", "options": {}})
    real = worker._ask

    def warm(prompt: list[int], max_tokens: int) -> dict[str, Any]:
        xllamacpp[-1].params.cached = 2
        return real(prompt, max_tokens)

    monkeypatch.setattr(worker, "_ask", warm)
    with pytest.raises(RuntimeError, match="2 tokens of the prompt were cached"):
        worker.answer({"prompt": [1], "max_tokens": 3})


def test_what_is_installed_counts_only_when_it_is_complete_and_the_right_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if "venv" in command:
            (tmp_path / "x/bin").mkdir(parents=True)
            (tmp_path / "x/bin/python").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    home = tmp_path / "x"
    assert install.python(home) is None
    monkeypatch.setattr(subprocess, "run", run)
    assert install.install(home) == install.python(home) == home / "bin/python"
    assert commands[-1][-1] == install.PACKAGE
    (home / "installed").write_text("xllamacpp==1")
    assert install.python(home) is None

    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Looking\nERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(ConfigError, match=r"^an environment cannot be made: ERROR: No matching distribution$"):
        install.install(home)
    assert install.python(home) is None


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("bench_peers", ROOT / "scripts/bench_peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(Arm, "command", lambda self, python: COMMAND)
    return module


def test_a_whole_run_without_llama_server(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, out = tmp_path / "w.jsonl", tmp_path / "out.json"
    lines = [{"question_id": i, "group": "g", "turns": [word]} for i, word in enumerate(("well", "raise", "fine"))]
    work.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["m", "--workload", str(work), "--max-tokens", "5", "--json", str(out), "--threads", "2"]
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", *arguments, "--peers", "bare,server mod"])
    assert script.main() == 1, "the prompt of a question is refused"
    assert "error: RuntimeError: out of cells" in capsys.readouterr().err
    work.write_text("\n".join(map(json.dumps, [lines[0], lines[2]])))
    assert script.main() == 0
    captured = capsys.readouterr()
    assert "llama-server is left out: xllamacpp==" in captured.err
    assert captured.out.splitlines()[-1].startswith("Gain over own plain decoding: edgespec 1.000")
    found = json.loads(out.read_text())
    assert set(found["geomean"]) == {*(arm.name for arm in OURS), "bare loop"}
    assert found["versions"]["bare loop"] == "fake 1"
    assert found["idle_cpu_s"] is not None or not sys.platform.startswith("linux")


def test_a_group_that_does_not_exist_is_refused(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "--groups", "nothing"])
    assert script.main() == 2
    assert "no such group" in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.slow
def test_programs_of_one_build_write_the_same_text(default_model: Path) -> None:
    """The same file, the same prompt tokens, greedy: whatever the program around llama.cpp is."""
    arms = choose("bare,lcpp lookup 10")
    settings = {"model": str(default_model), "n_ctx": 512, "threads": 1}
    seated = seats(arms, None, settings)
    question = Question("q", "g", "List the numbers from one to ten, twice.")
    try:
        prompt = seated[PLAIN].ask({"question": question.text})["prompt"]
        match = play(Contest([question], arms, 1, 24), seated, {"q": prompt}, Match())
    finally:
        for seat in seated.values():
            seat.close()
    assert {run.mode: run.error for run in match.runs} == {arm.name: None for arm in arms}
    texts = {match.texts["q", 0, arm.name] for arm in arms if not arm.drafts}  # wide passes may differ in a near tie
    assert len(texts) == 1
    for run in match.runs:
        assert run.decoded == run.tokens - 1
        assert 0 <= run.accepted <= run.drafted
    looked_up = next(run for run in match.runs if run.mode == "lcpp lookup 10")
    assert looked_up.drafted > 0
