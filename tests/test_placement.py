"""Threads on the cores they should be on, on this machine's real cores, whatever the system does to the wish."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import gguf_maker
import pytest

from edgespec.answer import Stream
from edgespec.conditions import Team
from edgespec.config import EngineConfig
from edgespec.core.cost import CostModel
from edgespec.decode_thread import DecodeThread, decode_thread
from edgespec.device import affinity
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Core, Topology
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Plan, Result, Sampling
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions
from edgespec.testing import ScriptedDrafter

PROMPT = list(b"abcabcabc the cat sat on the mat, the cat sat on the mat")
LIMITS = Limits(max_tokens=60, ignore_eog=True)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads"),
    pytest.mark.usefixtures("patient"),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """This machine with its first core declared little and its second big; gives both, and restores the mask."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    little, big = sorted(before)[:2]

    def topology(_sysfs: Sysfs, affinity: frozenset[int] | None = None) -> Topology:
        usable = tuple(sorted({little, big} & (affinity or before)))
        cores = (Core(little, True, "efficiency"), Core(big, True, "performance"))
        return Topology(cores, (big,), (little,), False, usable, None, "declared")

    monkeypatch.setattr("edgespec.opening.read_topology", topology)
    monkeypatch.setattr("edgespec.machine.read_topology", topology)
    monkeypatch.setattr("edgespec.machine._CHECK_EVERY_S", 0.0)
    yield little, big
    os.sched_setaffinity(0, before)


def open_engine(path: Path, **options: object) -> Engine:
    return Engine.open(path, EngineConfig(n_ctx=256, **options))  # type: ignore[arg-type]


def finish(stream: Stream, at: Mapping[int, Callable[[], object]] | None = None) -> Result:
    """Run an answer to its end; `at` round n, do something."""
    for n, _ in enumerate(stream):
        (at or {}).get(n, lambda: None)()
    return stream.result


def guesser() -> ScriptedDrafter:
    return ScriptedDrafter(lambda context, limit: list(context[-2:]), "guesser")


def decode_threads() -> list[int]:
    return list(affinity.masks(Sysfs(), "edgespec-decode"))


def test_target_and_drafter_are_apart_and_the_report_says_what_the_system_says(
    llama: Path, two_kinds: tuple[int, int]
) -> None:
    little, big = two_kinds
    before = os.sched_getaffinity(0)
    with open_engine(llama) as engine:
        plain = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="none"))
        drafted = finish(
            engine.stream(PROMPT, Sampling(), Limits(60, fixed_draft=2, ignore_eog=True), drafter=guesser())
        )
        assert drafted.tokens == plain.tokens
        assert drafted.report.cpus_target == (big,)
        assert drafted.report.cpus_drafter == (little,)
        assert (drafted.report.threads, drafted.report.threads_wide) == (1, 1)
        assert plain.report.cpus_drafter == ()
        inline = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="ngram"))
        assert inline.report.cpus_drafter == (big,)
        assert {frozenset((big,))} == set(affinity.masks(Sysfs(), "edgespec-decode").values())
    assert os.sched_getaffinity(0) == before, "the caller's thread is not ours to pin"


@pytest.mark.parametrize("error", [OSError(22, "Invalid argument"), PermissionError(1, "Operation not permitted")])
def test_a_refused_pin_is_said_and_the_text_goes_on(
    llama: Path, two_kinds: tuple[int, int], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(_thread: int, _cpus: object) -> None:
        raise error

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with open_engine(llama) as engine:
        result = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter=guesser()))
        assert len(result.tokens) == 60
        assert any(str(error.strerror) in note and str(two_kinds[1]) in note for note in result.report.notes)
        assert any(note.startswith("the drafter's cores") for note in result.report.notes)
        assert result.report.cpus_drafter == tuple(sorted(os.sched_getaffinity(0)))
    monkeypatch.undo()


def test_a_pin_that_is_silently_ignored_is_noticed(
    llama: Path, two_kinds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_thread().run(lambda: affinity.pin(()), Flag())
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: None)
    with open_engine(llama) as engine:
        result = finish(engine.stream(PROMPT, Sampling(), LIMITS))
        assert result.report.cpus_target == tuple(sorted(os.sched_getaffinity(0)))
        assert any(note.startswith("the system keeps the target on cores") for note in result.report.notes)
    monkeypatch.undo()


def test_systems_without_pins(llama: Path, two_kinds: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(affinity, "masks", lambda sysfs, name: {})
    with open_engine(llama) as engine:
        report = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter=guesser())).report
        assert report.cpus_target is None
        assert report.cpus_drafter is None
        assert any("does not pin" in note for note in report.notes)
    monkeypatch.undo()


def test_a_lost_pin_is_renewed(llama: Path, two_kinds: tuple[int, int]) -> None:
    big = two_kinds[1]

    def lose() -> None:
        for thread in decode_threads():
            os.sched_setaffinity(thread, set(two_kinds))

    with open_engine(llama) as engine:
        result = finish(engine.stream(PROMPT, Sampling(), LIMITS), {10: lose, 30: lose})
        assert result.report.cpus_target == (big,)


def test_a_narrowed_process_goes_on_and_comes_back(llama: Path, two_kinds: tuple[int, int]) -> None:
    little, big = two_kinds
    seen: list[frozenset[int]] = []

    def narrow() -> None:
        os.sched_setaffinity(0, {little})  # as a cpuset for background apps does to the whole process
        for thread in decode_threads():
            os.sched_setaffinity(thread, {little})

    def look() -> None:
        seen.extend(affinity.masks(Sysfs(), "edgespec-decode").values())

    def widen() -> None:
        os.sched_setaffinity(0, {little, big})

    with open_engine(llama) as engine:
        plain = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="none"))
        at = {10: narrow, 20: look, 30: widen}
        result = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter=guesser()), at)
        assert result.tokens == plain.tokens
        assert set(seen) == {frozenset({little})}
        assert result.report.cpus_target == (big,)
        reasons = [change.reason for change in result.report.team_changes]
        assert reasons == [f"cores {little} may be used now", f"cores {little},{big} may be used now"]
        assert all(0 <= change.at_s < 60 for change in result.report.team_changes)


def test_a_drafter_that_is_pinned_first_narrows_nobody(llama: Path, two_kinds: tuple[int, int]) -> None:
    with open_engine(llama) as first:
        finish(first.stream(PROMPT, Sampling(), LIMITS, drafter=guesser()))
        with open_engine(llama) as second:
            for _ in range(2):
                assert finish(second.stream(PROMPT, Sampling(), LIMITS)).report.cpus_target == (two_kinds[1],)
    main = os.sched_getaffinity(os.getpid())
    assert set(two_kinds) <= main


def test_pools_follow_the_team(llama: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with load(llama, TargetOptions(n_ctx=256, n_threads=2, n_rows_max=4)) as target:
        pools = target._handles.pools
        rows = []
        for team in (Team(2, 2), Team(1, 2), Team(3, 1), Team(1, 1, (cpus[0],)), Team(1, 2, (cpus[0],), tuple(cpus))):

            def step(team: Team = team) -> None:
                assert target.use_team(team) is None
                assert pools.n_threads >= max(team.one, team.wide)
                target.clear(0)
                rows.append(target.eval([Plan(0, 0, [1, 2, 3])])[0].copy())
                target.eval([Plan(0, 3, [4])])

            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        assert len(rows) == 5
        assert all((row == rows[0]).all() for row in rows)


class Flag:
    """Something to abort."""

    def __init__(self) -> None:
        self.raised = threading.Event()

    def abort(self) -> None:
        self.raised.set()

    def resume(self) -> None:
        self.raised.clear()


def test_the_decode_thread_gives_back_what_the_job_gives() -> None:
    thread, flag = DecodeThread(), Flag()

    def fail() -> None:
        raise ValueError("no")

    assert thread.run(lambda: 7, flag) == 7
    with pytest.raises(ValueError, match="no"):
        thread.run(fail, flag)
    assert thread.run(lambda: thread.run(threading.current_thread, flag), flag).name == "edgespec-decode"


def test_ctrl_c_while_waiting_ends_the_job_first() -> None:
    thread, flag = DecodeThread(), Flag()
    done: list[str] = []

    def job() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.raised.wait(30)
        done.append("ended")

    with pytest.raises(KeyboardInterrupt):
        thread.run(job, flag)
    assert done == ["ended"]
    assert not flag.raised.is_set()
    assert thread.run(lambda: 1, flag) == 1  # nothing of the interrupted call is left over


def test_all_models_decode_on_one_thread_each_with_its_own_team(llama: Path, two_kinds: tuple[int, int]) -> None:
    big = two_kinds[1]

    def n_threads() -> int:
        return [thread.name for thread in threading.enumerate()].count("edgespec-decode")

    with open_engine(llama) as first, open_engine(llama, threads=2) as second:
        n_before = n_threads()
        alone = [finish(engine.stream(PROMPT, Sampling(), LIMITS)).tokens for engine in (first, second)]
        streams = [engine.stream(PROMPT, Sampling(), LIMITS) for engine in (first, second)]
        ended = [False, False]
        while not all(ended):  # turn by turn
            for i, stream in enumerate(streams):
                ended[i] = next(stream, None) is None
        assert [stream.result.tokens for stream in streams] == alone
        assert streams[0].result.report.threads == 1
        assert streams[1].result.report.threads == 2
        assert finish(first.stream(PROMPT, Sampling(), LIMITS)).report.cpus_target == (big,)
        assert finish(second.stream(PROMPT, Sampling(), LIMITS)).report.cpus_target == two_kinds
        assert n_threads() == n_before


def test_masks_are_read_by_name(tmp_path: Path) -> None:
    def task(number: int, name: str, cpus: str) -> None:
        folder = tmp_path / f"proc/self/task/{number}"
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\t{name}\nPid:\t{number}\nCpus_allowed_list:\t{cpus}\n")

    task(10, "python", "0-7")
    task(11, "edgespec-decode", "4-7")
    task(12, "edgespec-decode", "4,6")
    (tmp_path / "proc/self/task/13").mkdir()
    assert affinity.masks(Sysfs(tmp_path), "edgespec-decode") == {11: frozenset({4, 5, 6, 7}), 12: frozenset({4, 6})}
    assert affinity.masks(Sysfs(tmp_path / "none"), "edgespec-decode") == {}


@pytest.mark.parametrize("wanted", [[], [10**6]])
def test_impossible_wishes_leave_what_is_allowed(wanted: Sequence[int]) -> None:
    found: list[object] = []

    def ask() -> None:
        found.extend((affinity.pin(wanted), affinity.own_mask()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert (found[0] is None) == (not wanted)
    assert found[1] == affinity.allowed()


@pytest.mark.parametrize("pays", [True, False])
def test_slower_cores_join_wide_passes_where_that_pays(
    llama: Path, two_kinds: tuple[int, int], monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    little, big = two_kinds
    asked: list[int] = []

    def told(_target: object, _clock: object, usual: Callable[[], object], other: Callable[[], object]) -> bool:
        asked.append(1)
        other()
        usual()
        return pays

    monkeypatch.setattr("edgespec.machine.gains", told)
    monkeypatch.setattr(CostModel, "suspect", property(lambda self: False))
    limits = Limits(60, fixed_draft=2, ignore_eog=True)
    plain = None
    for _ in range(2):  # the second engine has it from the first
        with open_engine(llama) as engine:
            assert engine.machine.governor.full == (Team(1, 2, (big,), (little, big)) if pays else Team(1, 1, (big,)))
            result = finish(engine.stream(PROMPT, Sampling(), limits, drafter=guesser()))
            plain = plain or finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="none"))
            assert result.tokens == plain.tokens
            # A drafter must not share a core with the team: where none is left, it goes where the system puts it.
            assert result.report.cpus_drafter == ((little, big) if pays else (little,))
    assert len(asked) == 1


def test_asked_for_threads_are_not_overruled_by_an_earlier_run(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(_target: object, _clock: object, use: Callable[[int], object], _n_threads: int) -> int:
        use(1)  # as on a busy machine
        return 1

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    monkeypatch.setattr("edgespec.machine.choose_threads", one)
    monkeypatch.setattr(CostModel, "suspect", property(lambda self: False))
    n = len(os.sched_getaffinity(0))
    with open_engine(llama) as engine:
        finish(engine.stream(PROMPT, Sampling(), Limits(3, ignore_eog=True)))
    with open_engine(llama, threads=n) as engine:
        report = finish(engine.stream(PROMPT, Sampling(), LIMITS)).report
        assert (report.threads, report.threads_wide) == (n, n)


def test_a_mask_of_the_process_holds_for_the_target_where_all_cores_are_alike(llama: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    first = min(before)
    seen: list[set[frozenset[int]]] = []

    def look() -> None:
        seen.append(set(affinity.masks(Sysfs(), "edgespec-decode").values()))

    try:
        with open_engine(llama) as engine:
            at = {
                10: lambda: os.sched_setaffinity(0, {first}),
                20: look,
                30: lambda: os.sched_setaffinity(0, before),
                40: look,
            }
            result = finish(engine.stream(PROMPT, Sampling(), LIMITS), at)
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [{frozenset({first})}, {frozenset(before)}]
    assert len(result.report.team_changes) >= 2
