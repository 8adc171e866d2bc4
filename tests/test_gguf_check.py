"""Files that are not models are named for what they are before llama.cpp sees them."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import gguf_maker as maker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import ModelError, ModelFormatError, ModelNotFoundError
from edgespec.target.gguf_check import check
from edgespec.target.gguf_header import TYPES


def header(n_tensors: int = 0, n_keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "html": (b"<!DOCTYPE html><html>404</html>", "web page"),
    "xml": (b"<?xml version='1.0'?><Error/>", "web page"),
    "text": (b"Entry not found", "is text"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "old": (b"ggjt\x03\0\0\0" + b"\1" * 64, "old GGML"),
    "zip": (b"PK\x03\x04" + b"\0" * 64, "PyTorch"),
    "safetensors": (struct.pack("<Q", 64) + b'{"a":{}}' + b" " * 64, "safetensors"),
    "zeros": (b"\0" * 4096, "zeros"),
    "binary": (bytes(range(256)), "not a GGUF"),
    "magic only": (b"GGUF", "ends inside its header"),
    "version 1": (header(version=1), "version 1"),
    "version 9": (header(version=9), "version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "absurd tensors": (header(n_tensors=1 << 40), "claims 1099511627776 tensors"),
    "absurd keys": (header(n_keys=1 << 62), "claims"),
    "absurd key length": (header(n_keys=1) + struct.pack("<Q", 1 << 50) + b"x" * 64, "text of"),
    "cut in a key": (header(n_keys=1) + text(b"general.architecture")[:12] + b"", "text of"),
    "empty key": (header(n_keys=1) + text(b"") + struct.pack("<I", 4) + b"\0" * 64, "empty or doubled"),
    "unknown type": (header(n_keys=1) + text(b"k") + struct.pack("<I", 99) + b"\0" * 64, "type 99"),
    "nested array": (header(n_keys=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 64, "claims 1 items"),
    "absurd array": (header(n_keys=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 60) + b"\0" * 64, "items"),
    "absurd strings": (header(n_keys=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 3) + b"\xff" * 64, "ends inside"),
    "dimensions": (header(n_tensors=1) + text(b"t") + struct.pack("<I", 2**31) + b"\0" * 64, "dimensions"),
    "no keys": (header() + b"\0" * 64, "names no architecture"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_named(tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=message) as caught:
        check(path)
    assert "\n" not in str(caught.value)


def test_missing_directory_and_permission(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        check(tmp_path / "absent.gguf")
    with pytest.raises(ModelFormatError, match="is a directory"):
        check(tmp_path)
    if os.geteuid() != 0:
        path = maker.make(tmp_path / "secret.gguf")
        path.chmod(0)
        with pytest.raises(ModelNotFoundError, match="no permission"):
            check(path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        check(tmp_path / "pipe.gguf")


@pytest.mark.parametrize("kind", maker.KINDS)
def test_a_good_file(tmp_path: Path, kind: str) -> None:
    info = check(maker.make(tmp_path / "m.gguf", kind))
    assert info.arch == kind
    assert (info.n_layer, info.n_embd, info.n_vocab) == (maker.N_LAYER, maker.N_EMBD, maker.N_VOCAB)
    assert info.n_ctx_train == 2048
    assert info.quant == "F32"
    assert not info.has_template
    assert (info.recurrent_bytes > 0) == (kind in ("lfm2", "mamba"))
    assert any(info.windowed) == (kind == "gemma3")
    assert info.weight_bytes < info.file_bytes == (tmp_path / "m.gguf").stat().st_size


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = maker.make(tmp_path / "m.gguf")
    before = check(path).fingerprint
    assert check(maker.make(tmp_path / "same.gguf")).fingerprint == before
    assert check(maker.make(tmp_path / "other.gguf", meta={"general.name": "x"})).fingerprint != before


def test_cut_off_weights(tmp_path: Path) -> None:
    path = maker.make(tmp_path / "m.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(ModelFormatError, match=r"cut off: .* download it again"):
        check(path)


def test_every_cut_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = maker.make(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(600), *range(600, len(whole), 5003)]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            check(path)


@given(st.binary(max_size=200), st.integers(4, 900))
def test_damage_never_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "damage"
    folder.mkdir(exist_ok=True)
    good = folder / "good.gguf"
    whole = good.read_bytes() if good.exists() else maker.make(good).read_bytes()
    path = folder / "bad.gguf"
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    with contextlib.suppress(ModelError):
        check(path)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"general.type": "adapter"}, "LoRA adapter"),
        ({"general.type": "mmproj"}, "vision projector"),
        ({"general.type": "imatrix"}, "quantisation statistics"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
        ({"llama.block_count": None}, "block_count is missing"),
        ({"llama.block_count": 4_000_000}, "block_count is 4000000"),
        ({"llama.embedding_length": 0}, "embedding_length is 0"),
    ],
)
def test_other_kinds_of_gguf(tmp_path: Path, meta: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        check(maker.make(tmp_path / "m.gguf", meta=meta))


def bare(path: Path, arch: str, meta: dict[str, int] | None = None) -> Path:
    """A GGUF without tensors."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (meta or {}).items():
        writer.add_uint16(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def test_vocabulary_only_and_embedding_models(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="only a vocabulary"):
        check(bare(tmp_path / "v.gguf", "llama"))
    with pytest.raises(ModelFormatError, match="vision projector"):
        check(bare(tmp_path / "c.gguf", "clip"))


def test_split_models(tmp_path: Path) -> None:
    meta = {"split.count": 2, "split.no": 0}
    first = maker.make(tmp_path / "m-00001-of-00002.gguf", meta=meta)
    with pytest.raises(ModelNotFoundError, match=r"1 of 2 parts are missing, m-00002-of-00002\.gguf"):
        check(first)
    second = bare(tmp_path / "m-00002-of-00002.gguf", "llama", {"split.count": 2, "split.no": 1})
    assert check(first).parts == (first, second)
    with pytest.raises(ModelFormatError, match=r"name the first part, m-00001-of-00002\.gguf"):
        check(second)
    bare(second, "llama", {"split.count": 2, "split.no": 0})
    with pytest.raises(ModelFormatError, match="not part 2"):
        check(first)
    with pytest.raises(ModelFormatError, match="one of 2 parts"):
        check(first.rename(tmp_path / "renamed.gguf"))


def test_repacked_weights_are_counted_by_type(tmp_path: Path) -> None:
    path = maker.make(tmp_path / "m.gguf", n_vocab=272)
    assert check(path, repacked_types=frozenset({"Q4_0"})).repack_bytes == 0
    info = check(path, repacked_types=frozenset({"F32"}))
    assert 0.9 * info.weight_bytes < info.repack_bytes <= info.weight_bytes


def test_the_type_table_agrees_with_the_gguf_package() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert TYPES[int(kind)] == (kind.name, block, size)


@pytest.mark.model
def test_the_default_model(default_model: Path) -> None:
    info = check(default_model)
    assert (info.arch, info.quant, info.n_layer) == ("llama", "Q4_1", 30)
    assert info.n_params == 134_515_008
    assert info.has_template
