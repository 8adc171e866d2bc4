"""One GGUF file's header, read with bounds, before llama.cpp sees the file.

Source: the format as read by ggml/src/gguf.cpp in llama-cpp-python 0.3.36. Knows nothing of what the keys mean.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFormatError, ModelNotFoundError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 1_000_000  # keys or tensors; real files have hundreds
_MAX_ITEMS = 16_000_000  # of one array; the largest vocabularies have under a million
_MAX_STRING = 64 << 20
_KEPT_ITEMS = 4096  # arrays up to this length are kept, longer ones only counted
_MAX_NAME = 64
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_FINAL_NORM = "output_norm.weight"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
"""ggml's tensor types: name, elements of a block, bytes of a block."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table; `shape` in ggml's order, the length of a row first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    n_bytes: int
    offset: int

    @property
    def n_elements(self) -> int:
        """Product of the shape."""
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights of one file."""

    path: Path
    n_bytes: int
    meta: dict[str, Any]
    """Scalars, strings, and short arrays of numbers (as tuples) by key."""
    lengths: dict[str, int]
    """Lengths of all arrays by key, kept or not."""
    tensors: tuple[Tensor, ...]
    digest: str
    """sha256 over the file's size, its header, and samples of its weights."""
    final_norm: str | None = None
    """sha256 of the last norm's weights, which quantising leaves as they are; None: they are not in this file."""


def read_header(path: Path) -> Header:
    """Read and check one file's header. About 0.1 s for a vocabulary of 50,000 tokens.

    Raises:
        ModelNotFoundError: no such file, or it may not be read.
        ModelFormatError: not a GGUF, or a damaged one.
    """
    try:
        if path.is_dir():
            raise ModelFormatError(f"{path} is a directory: name the .gguf file in it")
        if path.exists() and not path.is_file():
            raise ModelFormatError(f"{path} is not a regular file: name a .gguf file")
        with path.open("rb") as file:
            first = file.read(512)
            n_bytes = file.seek(0, 2)
            _check_magic(path, first)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, n_bytes).read()
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"no such file: {path}: check the path") from error
    except PermissionError as error:
        raise ModelNotFoundError(f"no permission to read {path}: change its mode (chmod u+r) or its owner") from error
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read ({error.strerror or error}): check the disk") from error


def _check_magic(path: Path, first: bytes) -> None:
    if first[:4] == MAGIC:
        return
    start = first.lstrip().lower()
    if not first:
        cause = "is empty: download it again"
    elif start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<")):
        cause = "is a web page, not a model: its address was wrong or wants a login; download it again"
    elif first.startswith(b"version https://git-lfs"):
        cause = "is a Git LFS pointer, not the model: run git lfs pull"
    elif first[:4] in (b"ggml", b"ggjt", b"ggla", b"lmgg", b"tjgg", b"algg"):
        cause = "is in the old GGML format: get the model as GGUF"
    elif first[8:9] == b"{" and len(first) > 16:
        cause = "looks like safetensors: convert it to GGUF, or get the model as GGUF"
    elif first.startswith(b"PK\x03\x04"):
        cause = "is a zip archive or a PyTorch file: get the model as GGUF"
    elif not first.strip(b"\0"):
        cause = "begins with zeros, its download was not finished: download it again"
    elif b"\0" not in first and all(byte >= 9 for byte in first):
        cause = "is text, not a model: download it again"
    else:
        cause = "is not a GGUF file: get the model as GGUF"
    raise ModelFormatError(f"{path.name} {cause}")


@dataclass(slots=True)
class _Reader:
    path: Path
    data: mmap.mmap
    n_bytes: int
    at: int = 4
    meta: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def read(self) -> Header:
        try:
            n_tensors, n_keys = self._counts()
            for _ in range(n_keys):
                self._key_value()
            tensors = tuple(self._tensor() for _ in range(n_tensors))
        except (struct.error, OverflowError, ValueError) as error:
            raise self._bad("ends inside its header: download it again") from error
        begin = self._data_start()
        self._check_extent(tensors, begin)
        final_norm = next((self._sha256(begin, tensor) for tensor in tensors if tensor.name == _FINAL_NORM), None)
        return Header(self.path, self.n_bytes, self.meta, self.lengths, tensors, self._digest(begin), final_norm)

    def _bad(self, cause: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path.name} {cause}")

    def _number(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        if length > min(_MAX_STRING, self.n_bytes - self.at):
            raise self._bad(f"is damaged (a text of {length} bytes in the header): download it again")
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", "replace")

    def _counts(self) -> tuple[int, int]:
        version = self._number("I")
        if version not in _VERSIONS:
            if version and version & 0xFFFF == 0:
                raise self._bad("is a big-endian GGUF: get the usual little-endian one")
            raise self._bad(f"is GGUF version {version}, versions 2 and 3 are known: get a current file")
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        for count, smallest, what in ((n_tensors, 24, "tensors"), (n_keys, 13, "keys")):
            if count > _MAX_ENTRIES or count * smallest > self.n_bytes:
                raise self._bad(f"is damaged or cut off (it claims {count} {what}): download it again")
        return n_tensors, n_keys

    def _key_value(self) -> None:
        key = self._string()
        kind = self._number("I")
        if not key or key in self.meta or key in self.lengths:
            raise self._bad(f"is damaged (key {key[:40]!r} is empty or doubled): download it again")
        if kind == _STRING:
            self.meta[key] = self._string()
        elif kind == _ARRAY:
            self._array(key)
        elif kind in _SCALARS:
            self.meta[key] = self._number(_SCALARS[kind])
        else:
            raise self._bad(f"is damaged (key {key[:40]!r} has type {kind}): download it again")

    def _array(self, key: str) -> None:
        kind, count = self._number("I"), self._number("Q")
        code = _SCALARS.get(kind)
        width = struct.calcsize("<" + code) if code else 8
        if (code is None and kind != _STRING) or count > _MAX_ITEMS or count * width > self.n_bytes - self.at:
            raise self._bad(f"is damaged or cut off (key {key[:40]!r} claims {count} items): download it again")
        self.lengths[key] = count
        if code is None:
            self._skip_strings(count)
            return
        if count <= _KEPT_ITEMS:
            self.meta[key] = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += count * width

    def _skip_strings(self, count: int) -> None:
        at, data, length_at = self.at, self.data, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        if at > self.n_bytes:
            raise struct.error
        self.at = at

    def _tensor(self) -> Tensor:
        name = self._string()
        n_dims = self._number("I")
        if not name or len(name) >= _MAX_NAME or n_dims > _MAX_DIMS:
            raise self._bad(f"is damaged (tensor {name[:40]!r} of {n_dims} dimensions): download it again")
        shape = tuple(self._number("Q") for _ in range(n_dims))
        kind, offset = self._number("I"), self._number("Q")
        if kind not in TYPES:
            raise self._bad(f"has tensor type {kind}, which this llama.cpp does not know: get another quantisation")
        type_name, block, block_bytes = TYPES[kind]
        tensor = Tensor(name, shape, type_name, 0, offset)
        if any(size <= 0 or size > 1 << 40 for size in shape) or (shape and shape[0] % block):
            raise self._bad(f"is damaged (tensor {name[:40]!r} has shape {shape}): download it again")
        return Tensor(name, shape, type_name, tensor.n_elements // block * block_bytes, offset)

    def _data_start(self) -> int:
        alignment = self.meta.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self._bad(f"is damaged (alignment {alignment}): download it again")
        return (self.at + alignment - 1) // alignment * alignment

    def _check_extent(self, tensors: tuple[Tensor, ...], begin: int) -> None:
        need = max((begin + tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
        if need > self.n_bytes:
            raise self._bad(f"is cut off: {self.n_bytes} of at least {need} bytes are there; download it again")

    def _sha256(self, begin: int, tensor: Tensor) -> str:
        at = begin + tensor.offset
        return hashlib.sha256(self.data[at : at + tensor.n_bytes]).hexdigest()

    def _digest(self, begin: int) -> str:
        state = hashlib.sha256(self.n_bytes.to_bytes(8, "little"))
        state.update(self.data[: self.at])
        step = max(1, (self.n_bytes - begin) // 16)
        for at in range(begin, self.n_bytes, step):
            state.update(self.data[at : at + 1024])
        return state.hexdigest()
