"""Downloads over lines that break and servers that lie: never a wrong final file, nothing fetched twice in vain."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hub_server import DATA, SHA256, Hub, serving

from edgespec.errors import DownloadError, ModelNotFoundError
from edgespec.hub import files
from edgespec.hub.download import _CHUNK, fetch
from edgespec.hub.files import Callbacks, DiskError


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "owner" / "repo" / "m.gguf"


def get(hub: Hub, target: Path, **options: Any) -> list[float]:
    """Fetch without waiting between tries; return the waits that were asked for."""
    waits: list[float] = []
    options.setdefault("progress", Callbacks())
    fetch(f"{hub.url}/m.gguf", target, sleep=waits.append, **options)
    return waits


def left_beside(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path != target)


def test_whole(hub: Hub, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    get(hub, target, size=len(DATA), sha256=SHA256, progress=Callbacks(lambda *done: seen.append(done)))
    assert target.read_bytes() == DATA
    assert left_beside(target) == []
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))


def test_what_is_here_is_not_fetched(hub: Hub, target: Path) -> None:
    get(hub, target)
    get(hub, target)
    assert len(hub.paths) == 1
    get(hub, target, force=True)
    assert len(hub.paths) == 2


def test_a_line_that_drops_is_taken_up_where_it_stopped(hub: Hub, target: Path) -> None:
    hub.drops = 3
    get(hub, target, sha256=SHA256)
    assert target.read_bytes() == DATA
    first = len(DATA) * 4 // 10 // _CHUNK * _CHUNK
    assert hub.ranges[:2] == [None, f"bytes={first}-"]
    assert len(hub.ranges) == 4


def test_a_later_run_goes_on_too(hub: Hub, target: Path) -> None:
    hub.drops, hub.statuses = 1, []
    target.parent.mkdir(parents=True)
    files.beside(target, ".part").write_bytes(DATA[:1000])
    files.beside(target, ".etag").write_text('"v1"')
    get(hub, target, sha256=SHA256)
    assert hub.ranges[0] == "bytes=1000-"
    assert target.read_bytes() == DATA


def test_a_file_that_changed_meanwhile_is_started_anew(hub: Hub, target: Path) -> None:
    target.parent.mkdir(parents=True)
    files.beside(target, ".part").write_bytes(b"GGUF of yesterday")
    files.beside(target, ".etag").write_text('"v0"')
    get(hub, target)
    assert hub.headers[0]["If-Range"] == '"v0"'
    assert target.read_bytes() == DATA


def test_a_server_that_ignores_range_is_started_anew(hub: Hub, target: Path) -> None:
    hub.drops, hub.ignore_range = 1, True
    get(hub, target, sha256=SHA256)
    assert target.read_bytes() == DATA


def test_another_part_than_asked_for(hub: Hub, target: Path) -> None:
    hub.drops, hub.wrong_range = 1, True
    get(hub, target, sha256=SHA256)
    assert hub.ranges[-1] is None
    assert target.read_bytes() == DATA


def test_416_when_everything_is_here(hub: Hub, target: Path) -> None:
    target.parent.mkdir(parents=True)
    files.beside(target, ".part").write_bytes(DATA)
    get(hub, target, sha256=SHA256)
    assert hub.ranges == [f"bytes={len(DATA)}-"]
    assert target.read_bytes() == DATA


def test_416_otherwise_starts_anew(hub: Hub, target: Path) -> None:
    hub.drops, hub.refuse_range = 1, True
    get(hub, target, sha256=SHA256)
    assert target.read_bytes() == DATA


def test_a_part_that_is_too_long_is_dropped(hub: Hub, target: Path) -> None:
    target.parent.mkdir(parents=True)
    files.beside(target, ".part").write_bytes(DATA + b"more")
    get(hub, target, size=len(DATA))
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_wrong_length(hub: Hub, target: Path, size: int) -> None:
    with pytest.raises(DownloadError, match="it is another file"):
        get(hub, target, size=size)
    assert left_beside(target) == []
    assert not target.exists()


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_wrong_length_that_is_not_announced(hub: Hub, target: Path, size: int) -> None:
    hub.no_length = True
    with pytest.raises(DownloadError):
        get(hub, target, size=size)
    assert not target.exists()


def test_a_body_shorter_than_announced_never_becomes_the_file(hub: Hub, target: Path) -> None:
    hub.announce_more = 10
    with pytest.raises(DownloadError, match="kept for the next try"):
        get(hub, target)
    assert not target.exists()


def test_no_length_at_all(hub: Hub, target: Path) -> None:
    hub.no_length = True
    get(hub, target)
    assert target.read_bytes() == DATA


def test_wrong_checksum(hub: Hub, target: Path) -> None:
    with pytest.raises(DownloadError, match="has the checksum"):
        get(hub, target, sha256="0" * 64)
    assert left_beside(target) == []
    assert not target.exists()


def test_the_hubs_own_checksum_is_used(hub: Hub, target: Path) -> None:
    hub.linked_sha256 = SHA256
    get(hub, target)
    target.unlink()
    hub.linked_sha256 = "f" * 64
    with pytest.raises(DownloadError, match="has the checksum"):
        get(hub, target)
    assert not target.exists()


def test_a_login_page_is_no_model(hub: Hub, target: Path) -> None:
    hub.data = b"<html>please log in</html>"
    with pytest.raises(DownloadError, match="not a GGUF file"):
        get(hub, target)
    assert not target.exists()


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [(404, ModelNotFoundError, "no such file"), (401, DownloadError, "HF_TOKEN"), (418, DownloadError, "answered 418")],
)
def test_refusals_are_final(hub: Hub, target: Path, status: int, kind: type[Exception], message: str) -> None:
    hub.statuses = [status]
    with pytest.raises(kind, match=message):
        get(hub, target)
    assert len(hub.ranges) == 1


def test_busy_servers_are_asked_again_a_few_times(hub: Hub, target: Path) -> None:
    hub.statuses = [503, 429]
    assert get(hub, target) == [1.0, 2.0]
    target.unlink()
    hub.statuses = [500] * 9
    with pytest.raises(DownloadError, match="answered 500"):
        get(hub, target)
    assert len(hub.statuses) == 5


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:9/m.gguf", "no network"), ("no-scheme/m.gguf", "Invalid URL"), ("http:///m.gguf", "URL")],
)
def test_no_network_is_one_line_at_once(target: Path, url: str, message: str) -> None:
    def no_wait(seconds: float) -> None:
        raise AssertionError("waited")

    with pytest.raises(DownloadError, match=message) as error:
        fetch(url, target, progress=Callbacks(), sleep=no_wait)
    assert "\n" not in str(error.value)


def test_the_token_goes_to_the_hub_only(hub: Hub, target: Path) -> None:
    get(hub, target, token="secret")
    assert hub.headers[0]["Authorization"] == "Bearer secret"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_disk_is_refused_before(hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(DiskError, match=r"1\.0 MB needed, 0\.0 MB free"):
        get(hub, target, size=len(DATA))
    assert hub.paths == []


def test_a_disk_that_fills_up_keeps_the_part(hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    class Filling:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Filling:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")

    def opened(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real(self, mode, *args, **kwargs)
        return Filling(file) if mode in {"ab", "wb"} else file

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        with pytest.raises(DiskError, match="what has been fetched is kept"):
            get(hub, target)
    assert files.beside(target, ".part").stat().st_size == 1000
    get(hub, target, sha256=SHA256)
    assert hub.ranges[-1] == "bytes=1000-"
    assert target.read_bytes() == DATA


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to mount a small file system")
def test_a_small_file_system(hub: Hub, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(target.parent)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(DiskError, match=r"MB needed"):
            get(hub, target)
        # The same where the file system does not say how full it is.
        monkeypatch.setattr(files, "check_space", lambda *_: None)
        monkeypatch.setattr("edgespec.hub.download.check_space", lambda *_: None)
        with pytest.raises(DiskError, match="is full"):
            get(hub, target)
        assert not target.exists()
    finally:
        subprocess.run(["umount", str(target.parent)], check=True)


def test_a_folder_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match="EDGESPEC_MODELS"):
        get(hub, tmp_path / "file" / "m.gguf")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(hub: Hub, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.parent.chmod(0o500)
    with pytest.raises(DiskError, match="cannot write"):
        get(hub, target)


PULL = """
import sys
from pathlib import Path
from edgespec.hub.download import _CHUNK, fetch
from edgespec.hub.files import Callbacks
fetch(sys.argv[1], Path(sys.argv[2]), progress=Callbacks(note=lambda text: print(text, flush=True)))
"""


def test_two_processes_fetch_one_model_once(hub: Hub, target: Path) -> None:
    import threading

    hub.gate = threading.Event()
    command = [sys.executable, "-c", PULL, f"{hub.url}/m.gguf", str(target)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not hub.paths:
        pass
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        assert "another process is fetching m.gguf" in second.stdout.readline()
        hub.gate.set()
        assert second.wait(20) == 0
    assert first.communicate(timeout=20)[0] == ""
    assert first.returncode == 0
    assert len(hub.paths) == 1
    assert target.read_bytes() == DATA
    assert left_beside(target) == []


def test_a_killed_process_leaves_a_part_that_is_used(hub: Hub, target: Path) -> None:
    import threading

    hub.gate = threading.Event()
    command = [sys.executable, "-c", PULL, f"{hub.url}/m.gguf", str(target)]
    with subprocess.Popen(command) as process:
        part = files.beside(target, ".part")
        while not (part.exists() and hub.paths):
            pass
        process.kill()
    hub.gate.set()
    hub.gate = None
    assert not target.exists()
    get(hub, target, sha256=SHA256)
    assert target.read_bytes() == DATA
    assert left_beside(target) == []
