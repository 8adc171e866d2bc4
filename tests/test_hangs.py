"""Folders of hardware that never answer: who opens a model, or asks the doctor, does not wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import gguf_maker
import pytest
from sensor_files import CPU, HWMON, LAPTOP, put

from edgespec import doctor, opening
from edgespec.config import EngineConfig
from edgespec.device import topology
from edgespec.device.clock import Clock
from edgespec.device.monitor import Monitor
from edgespec.device.raspberry import Raspberry
from edgespec.device.sysfs import Sysfs, n_late, within
from edgespec.engine import Engine
from edgespec.interfaces import Limits

T = TypeVar("T")

MODEL = "/proc/device-tree/model"
PLATFORM = "/sys/devices/platform"
WORD = f"{PLATFORM}/soc/soc:firmware/get_throttled"
NOT_A_PI = "no answer from {}: not taken for a Raspberry Pi"


class Hanging(Sysfs):
    """Files of which those below `path` do not answer until they are let go."""

    let_go = threading.Event()
    """One a test."""

    def __init__(self, root: Path, path: str) -> None:
        super().__init__(root)
        self.path = path
        self._let_go = Hanging.let_go

    def read_text(self, path: str, limit: int = 1 << 20) -> str | None:
        self._wait(path)
        return super().read_text(path, limit)

    def listdir(self, path: str) -> list[str]:
        self._wait(path)
        return super().listdir(path)

    def _wait(self, path: str) -> None:
        if path.startswith(self.path):
            self._let_go.wait()


@pytest.fixture(autouse=True)
def _let_go_afterwards() -> Iterator[None]:
    Hanging.let_go = threading.Event()
    yield
    Hanging.let_go.set()
    for _ in range(20000):
        if not n_late():
            return
        time.sleep(0.001)
    pytest.fail("reads that were let go go on")


def ends(work: Callable[[], T]) -> T:
    """What it returns; a failure where it waits for the files, which answer after the test only."""
    done: tuple[T, ...] = within(60.0, lambda: (work(),), ())
    assert done, "it waits for files that hang"
    return done[0]


@pytest.mark.parametrize("path", [MODEL, PLATFORM, HWMON])
def test_a_monitor_is_made_and_says_what_does_not_answer(tmp_path: Path, path: str) -> None:
    sysfs = Hanging(put(tmp_path, LAPTOP).root, path)
    watch = ends(lambda: Monitor(sysfs, (0,), path=""))
    assert NOT_A_PI.format(path) in watch.latest().notes


def test_of_a_pi_what_answers_is_read(tmp_path: Path) -> None:
    alarm = {f"{HWMON}/hwmon1/name": "rpi_volt", f"{HWMON}/hwmon1/in0_lcrit_alarm": "1"}
    root = put(tmp_path, {WORD: "50005", **alarm}).root
    lost_alarm = ends(lambda: Raspberry(Hanging(root, HWMON), path="").read(0))
    assert lost_alarm.throttled is True
    assert f"no answer from {HWMON}" in lost_alarm.notes
    lost_word = ends(lambda: Raspberry(Hanging(root, PLATFORM), path="").read(0))
    assert lost_word.throttled is None
    assert f"no answer from {PLATFORM}" in lost_word.notes
    assert any(note.startswith("undervoltage now") for note in lost_word.notes)


def test_a_governor_that_does_not_answer_takes_no_wishes(tmp_path: Path) -> None:
    root = put(tmp_path, {f"{CPU}/cpu4/cpufreq/scaling_governor": "schedutil"}).root
    clock = ends(lambda: Clock(Hanging(root, f"{CPU}/cpu4/cpufreq"), (4,), path=""))
    assert (clock.slowing, clock.reason) == (None, "the files of the frequency governor do not answer")
    assert clock.ask(0.5) == clock.reason
    clock.close()


@pytest.mark.parametrize("replayed", [False, True])
def test_the_doctor_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replayed: bool) -> None:
    root = put(tmp_path, LAPTOP).root
    monkeypatch.setattr(doctor, "_SENSORS_S", 0.2)
    monkeypatch.setattr(doctor, "Sysfs", lambda _root: Hanging(root, HWMON))
    monkeypatch.setattr(doctor, "_models", lambda *_: ((), ()))
    monkeypatch.setattr(doctor, "probe_build", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = ends(lambda: doctor.examine(root if replayed else None))
    assert NOT_A_PI.format(HWMON) in found.conditions.notes
    assert found.conditions.temp_c is None


@pytest.mark.parametrize("path", [HWMON, "/proc/device-tree", "/sys/devices/system/cpu/cpu"])
def test_a_model_opens_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(opening, "Sysfs", lambda: Hanging(Path("/"), path))
    monkeypatch.setattr(topology, "_PATIENCE_S", 0.05)
    model = gguf_maker.make(tmp_path / "llama.gguf")

    def answer() -> tuple[int, ...]:
        with Engine.open(model, EngineConfig(n_ctx=256, threads=1)) as engine:
            stream = engine.stream([5, 6, 7], limits=Limits(3, ignore_eog=True))
            for _ in stream:
                pass
            return stream.result.tokens

    assert len(ends(answer)) == 3
