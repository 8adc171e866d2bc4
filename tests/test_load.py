"""How busy others are, from the kernel's counters as it really writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_files import REFUSED, Refused, empty_root, put

from edgespec.device.load import Load, LoadReader
from edgespec.device.sysfs import Sysfs

Files = dict[str, str | int | Refused | None]


def stat(
    user: int = 0,
    nice: int = 0,
    system: int = 0,
    idle: int = 0,
    iowait: int = 0,
    irq: int = 0,
    softirq: int = 0,
    steal: int = 0,
    guest: int = 0,
    *,
    n_cpus: int = 4,
) -> Files:
    line = f"cpu  {user} {nice} {system} {idle} {iowait} {irq} {softirq} {steal} {guest} 0\n"
    return {"/proc/stat": line + "".join(f"cpu{n} 1 2 3 4 5 6 7 8 9 0\n" for n in range(n_cpus)) + "intr 5\nctxt 7"}


def own(user: int, system: int = 0, name: str = "python3") -> Files:
    """This process's own line; fields 14 and 15 are its time in user mode and in the kernel."""
    return {"/proc/self/stat": f"4711 ({name}) R 1 2 3 4 5 6 7 8 9 10 {user} {system} 99 98 20 0 5 0 1234 567 89"}


def others(tmp_path: Path, before: Files, after: Files, elapsed_s: float = 1.0) -> Load:
    reader = LoadReader(put(tmp_path, before), ticks_per_s=100)
    assert reader.read(0).busy_others is None
    put(tmp_path, after)
    return reader.read(elapsed_s)


def test_busy_of_all_less_our_own(tmp_path: Path) -> None:
    load = others(
        tmp_path, {**stat(user=1000, idle=500), **own(100, 50)}, {**stat(user=1250, idle=650), **own(180, 70)}
    )
    assert load == Load(busy_others=1.5)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (stat(idle=300, iowait=100), 0.0),
        (stat(nice=100), 1.0),
        (stat(system=50, irq=25, softirq=25), 1.0),
        (stat(user=100, guest=100), 1.0),
        (stat(user=100), 1.0),
    ],
    ids=["idle and iowait are not busy", "nice", "kernel", "guest is within user", "user"],
)
def test_what_is_busy(tmp_path: Path, after: Files, expected: float) -> None:
    assert others(tmp_path, {**stat(), **own(0)}, {**after, **own(0)}).busy_others == expected


def test_stolen_time_is_busy_and_said(tmp_path: Path) -> None:
    load = others(tmp_path, {**stat(), **own(0)}, {**stat(steal=100), **own(0)})
    assert load.busy_others == 1.0
    assert load.notes == ("the host takes 25% of this virtual machine's time",)
    assert others(tmp_path / "b", {**stat(), **own(0)}, {**stat(steal=10), **own(0)}).notes == ()


def test_we_alone_are_never_less_than_nothing(tmp_path: Path) -> None:
    # The two counters are taken one after the other and rounded differently.
    assert others(tmp_path, {**stat(), **own(0)}, {**stat(user=100), **own(103)}).busy_others == 0.0


def test_counters_that_go_backward_or_jump(tmp_path: Path) -> None:
    start = {**stat(user=1000, idle=1000, iowait=50), **own(100)}
    # idle and iowait are known to, and do not matter.
    assert others(tmp_path / "a", start, {**stat(user=1100, idle=900, iowait=10), **own(100)}).busy_others == 1.0
    assert others(tmp_path / "b", start, {**stat(user=900), **own(100)}).busy_others is None
    assert others(tmp_path / "c", start, {**stat(user=1100), **own(50)}).busy_others is None
    assert others(tmp_path / "d", start, {**stat(user=10**9), **own(100)}).busy_others is None
    reader = LoadReader(put(tmp_path, start), ticks_per_s=100)
    reader.read(0)
    put(tmp_path, {**stat(user=900), **own(100)})
    reader.read(1)
    put(tmp_path, {**stat(user=1000), **own(100)})
    assert reader.read(2).busy_others == 1.0, "the next interval counts again"


def test_intervals_too_short_to_say_anything(tmp_path: Path) -> None:
    reader = LoadReader(put(tmp_path, {**stat(), **own(0)}), ticks_per_s=100)
    reader.read(0)
    put(tmp_path, {**stat(user=100), **own(0)})
    assert reader.read(1).busy_others == 1.0
    put(tmp_path, {**stat(user=104), **own(0)})
    assert reader.read(1.01).busy_others == 1.0, "four ticks in a hundredth of a second are not four cores"
    put(tmp_path, {**stat(user=150), **own(0)})
    assert reader.read(2).busy_others == 0.5


@pytest.mark.parametrize("name", ["a b", "a) R 1 (b", "((", "x\ty"])
def test_a_program_name_with_anything_in_it(tmp_path: Path, name: str) -> None:
    assert others(tmp_path, {**stat(), **own(0, 0, name)}, {**stat(user=150), **own(50, 0, name)}).busy_others == 1.0


def test_old_kernels_have_fewer_columns(tmp_path: Path) -> None:
    before: Files = {"/proc/stat": "cpu 10 0 0 100\ncpu0 10 0 0 100", **own(0)}
    assert others(tmp_path, before, {"/proc/stat": "cpu 60 0 0 150\ncpu0 60 0 0 150", **own(0)}).busy_others == 0.5


def test_the_load_average_as_a_last_resort(tmp_path: Path) -> None:
    denied: Files = {"/proc/stat": REFUSED, "/proc/loadavg": "2.75 1.20 0.90 3/456 7890"}
    load = others(tmp_path, {**denied, **own(0)}, {**own(100)})
    assert load.busy_others == 1.75
    assert load.notes == ("the load of others is guessed from the load average",)


@pytest.mark.parametrize("loadavg", [REFUSED, "", "x y z", "-1.0 2 3", "nan 1 2"])
def test_denied_as_on_android(tmp_path: Path, loadavg: str | Refused) -> None:
    denied: Files = {"/proc/stat": REFUSED, "/proc/loadavg": loadavg, "/proc/pressure/cpu": REFUSED}
    load = others(tmp_path, {**denied, **own(0)}, {**own(100)})
    assert load == Load(notes=("the load of other processes cannot be read",))


@pytest.mark.parametrize("bad", [REFUSED, "", "4711 (python3) R 1 2", "4711 (p) R 1 2 3 4 5 6 7 8 9 10 x y 3", None])
def test_our_own_time_unknown(tmp_path: Path, bad: str | Refused | None) -> None:
    reader = LoadReader(put(tmp_path, {**stat(), "/proc/self/stat": bad}))
    for second in range(3):
        load = reader.read(second)
        assert load.busy_others is None
        assert load.notes == ("this process's own processor time cannot be read",)


@pytest.mark.parametrize("bad", ["", "cpu", "cpu a b c d", "intr 5", "cpu -1 2 3 4"])
def test_processor_time_that_is_none(tmp_path: Path, bad: str) -> None:
    assert others(tmp_path, {"/proc/stat": bad, **own(0)}, own(10)).busy_others is None


PSI = "some avg10={} avg60=1.29 avg300=0.47 total=3132995046\nfull avg10=77.00 avg60=0.00 avg300=0.00 total=0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PSI.format("3.91"), 0.0391),
        (PSI.format("0.00"), 0.0),
        (PSI.format("100.00"), 1.0),
        (PSI.format("400.00"), None),
        (PSI.format("nan"), None),
        ("full avg10=5.00 avg60=0.00", None),
        ("", None),
        (REFUSED, None),
        (None, None),
    ],
)
def test_pressure(tmp_path: Path, text: str | Refused | None, expected: float | None) -> None:
    pressure = LoadReader(put(tmp_path, {"/proc/pressure/cpu": text})).read(0).pressure
    assert pressure == (None if expected is None else pytest.approx(expected))


def test_this_machine() -> None:
    reader = LoadReader(Sysfs())
    reader.read(0)
    load = reader.read(1000)
    assert load.busy_others is None or load.busy_others >= 0
    assert load.pressure is None or 0 <= load.pressure <= 1


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["/proc/stat", "/proc/self/stat", "/proc/loadavg", "/proc/pressure/cpu"]),
            st.one_of(
                st.binary(max_size=60),
                st.integers(0, 2**70).map(lambda n: f"cpu {n} 0 0 {n} 0\ncpu0 1 2 3 4\n".encode()),
                st.integers(0, 2**70).map(lambda n: f"1 (x) R 1 2 3 4 5 6 7 8 9 10 {n} 7 0".encode()),
                st.sampled_from([b"1.5 2 3 1/2 3", PSI.format("5.00").encode()]),
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_nothing_raises(trees: list[dict[str, bytes]]) -> None:
    with empty_root() as root:
        reader = LoadReader(Sysfs(root))
        for second, files in enumerate(trees):
            put(root, files)
            load = reader.read(float(second))
            assert load.busy_others is None or load.busy_others >= 0
            assert load.pressure is None or 0 <= load.pressure <= 1
