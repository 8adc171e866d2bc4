"""Fixtures for all tests: no access to the user's folders, settings or the network; the real model on request."""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same cases every run, and no failure because the machine was busy.
settings.register_profile("edgespec", derandomize=True, deadline=None)
settings.load_profile("edgespec")

# A shell starts background jobs with Ctrl-C ignored, and programs inherit that: tests that press it could not pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Read before the fixture below clears the environment.
_TEST_MODEL = os.environ.get("EDGESPEC_TEST_MODEL")
_LOOPBACK = ("127.", "::1", "localhost")


def _isolate(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Clear EDGESPEC_* and point the XDG folders and HOME into a folder."""
    for name in list(os.environ):
        if name.startswith("EDGESPEC_") or name in {"HF_ENDPOINT", "HF_TOKEN", "NO_COLOR", "FORCE_COLOR"}:
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    for kind in ("CONFIG", "CACHE", "DATA", "STATE"):
        patch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))


@pytest.fixture(autouse=True, scope="session")
def _isolated_from_the_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures of whole modules: else engines in them would compute with the kernels in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own for each test."""
    _isolate(monkeypatch, tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection but those to this machine."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test tried to reach {address}")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait ten seconds for drafters of the test's own instead of two milliseconds: the machine may be busy."""
    from edgespec.draft.isolated import IsolatedDrafter

    monkeypatch.setattr("edgespec.drafters.IsolatedDrafter", functools.partial(IsolatedDrafter, deadline_s=10.0))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The file of the default model; tests that use it carry the marker `model`."""
    if _TEST_MODEL is None:
        reason = "EDGESPEC_TEST_MODEL is not set; ./scripts/test fetches the model and sets it"
        if os.environ.get("CI") == "true":
            raise RuntimeError(reason)
        pytest.skip(reason)
    path = Path(_TEST_MODEL)
    if not path.is_file():
        raise RuntimeError(f"EDGESPEC_TEST_MODEL={path} is not a file")
    return path
