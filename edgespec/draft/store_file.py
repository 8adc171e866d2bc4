"""The file behind the store drafter: the newest tokens of what was learned, and where each n-gram came last.

Little-endian, four-byte numbers, sizes by the capacity C; a position is stored plus one, 0 is none:

    header  4096 bytes: facts with a checksum, two slots of counters (written in turn, each with a checksum), models
    tokens  C: the token at position p is at p % C; `END` closes each text
    chain   C: for a position, where its last `SHORT` tokens came before
    heads   C each: by hash of the last `LONG`, and of the last `SHORT` tokens, where they came last
    texts   C / 256 digests of eight bytes, then C / 256 positions: texts that are there as a whole

Only the tokens are data; all else is a hint that is checked against them. What a reader finds is therefore an n-gram of
the store, or nothing, whatever a writer is doing to the file at that time or was doing when it was killed. Nobody
changes a file's size: a larger one takes its place, and readers of the old one keep it until their next answer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import DrafterError

SHORT, LONG = 3, 6
"""Tokens that the heads go by. The chain links the short ones; a long match is an entry into it further back."""
END = 2**32 - 1
"""Closes a text; no token."""
SUFFIX, DAMAGED, UNFINISHED = ".ngrams", ".damaged", ".part"
MASK = 2**64 - 1
WEIGHTS = (
    0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
)  # fmt: skip
"""By a token's distance from the newest; the high half of the weighted sum is the hash.

Source: Dietzfelbinger et al. 1997 (multiply-shift hashing, here of vectors)."""

_MAGIC, _VERSION = b"EDGENGRM", 1
_HEADER = 4096
_FACTS = struct.Struct("<8sIIQ32s")  # magic, version, vocabulary, capacity, sha256 of the tokenizer
_COUNTERS = struct.Struct("<QQI")  # serial number, tokens ever written, whether a writer is at it
_CRC = struct.Struct("<I")
_SLOTS = (512, 1024)
_MODELS, _MODEL_BYTES = 2048, 64
_TOKEN_BYTES, _TEXT_BYTES, _PER_TEXT = 16, 12, 256
STEP = 1024
"""Every capacity is a multiple of this, so that all parts are aligned."""


class DamagedError(DrafterError):
    """A file that is no store, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file is for, and how large."""

    digest: str
    """sha256 of the tokenizer."""
    n_vocab: int
    capacity: int

    @property
    def n_texts(self) -> int:
        """Texts that can be known as a whole."""
        return self.capacity // _PER_TEXT

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return _HEADER + _TOKEN_BYTES * self.capacity + _TEXT_BYTES * self.n_texts

    def begin(self, part: int) -> int:
        """Where part 0 (tokens), 1 (chain), 2 (long heads), 3 (short heads) or 4 (texts) begins."""
        return _HEADER + 4 * self.capacity * part

    def header(self) -> bytes:
        """How the file of an empty store begins."""
        parts = {0: _FACTS.pack(_MAGIC, _VERSION, self.n_vocab, self.capacity, bytes.fromhex(self.digest))}
        parts[_SLOTS[0]] = _COUNTERS.pack(0, 0, False)
        raw = bytearray(_HEADER)
        for at, part in parts.items():
            raw[at : at + len(part) + _CRC.size] = _signed(part)
        return bytes(raw)


def largest(max_bytes: int) -> int:
    """The capacity of a file of at most so many bytes; no less than the smallest one."""
    n = (max_bytes - _HEADER) * _PER_TEXT // (_TOKEN_BYTES * _PER_TEXT + _TEXT_BYTES)
    return max(STEP, n // STEP * STEP)


def _signed(raw: bytes) -> bytes:
    return raw + _CRC.pack(zlib.crc32(raw))


@dataclass(frozen=True, slots=True)
class Counters:
    """Where a file stands."""

    serial: int
    n_written: int
    """Tokens ever written; those before it can be found as far as they were not overwritten."""
    dirty: bool
    """Whether a writer is at it, or was killed while it was."""


class StoreFile:
    """A mapped file. Reading it needs no lock."""

    def __init__(self, path: Path, *, writing: bool = False) -> None:
        """Map a file.

        Raises:
            DamagedError: it is no store, or not a whole one.
            OSError: it is not there, or cannot be read.
        """
        self.path = path
        handle = os.open(path, os.O_RDWR if writing else os.O_RDONLY)
        try:
            status = os.fstat(handle)
            self.inode = status.st_ino
            if status.st_size < _HEADER:
                raise DamagedError(f"{path.name} is cut short")
            self.map = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if writing else mmap.ACCESS_READ)
        finally:
            os.close(handle)
        self.facts = self._facts()
        self.counters()
        view = memoryview(self.map)
        size = 4 * self.facts.capacity
        parts = (view[at : at + size].cast("I") for at in map(self.facts.begin, range(4)))
        self.tokens, self.chain, self.long_heads, self.short_heads = parts

    def _facts(self) -> Facts:
        raw = self.map[: _FACTS.size + _CRC.size]
        magic, version, n_vocab, capacity, digest = _FACTS.unpack_from(raw)
        if magic != _MAGIC or raw != _signed(raw[: _FACTS.size]):
            raise DamagedError(f"{self.path.name} has no sound header")
        if version != _VERSION:
            raise DamagedError(f"{self.path.name} is of version {version}, not {_VERSION}")
        facts = Facts(digest.hex(), n_vocab, capacity)
        if len(self.map) != facts.n_bytes:
            raise DamagedError(f"{self.path.name} has {len(self.map)} bytes instead of {facts.n_bytes}")
        return facts

    def counters(self) -> Counters:
        """Where the file stands now.

        Raises:
            DamagedError: neither slot is sound.
        """
        found = None
        for at in _SLOTS:
            raw = self.map[at : at + _COUNTERS.size + _CRC.size]
            serial, n_written, dirty = _COUNTERS.unpack_from(raw)
            if raw == _signed(raw[: _COUNTERS.size]) and n_written < END and (found is None or serial > found.serial):
                found = Counters(serial, n_written, bool(dirty))
        if found is None:
            raise DamagedError(f"{self.path.name} has no sound counters")
        return found

    def count(self, n_written: int, *, dirty: bool) -> None:
        """Say where the file stands, in the slot that does not say it now."""
        serial = self.counters().serial + 1
        raw = _signed(_COUNTERS.pack(serial, n_written, dirty))
        at = _SLOTS[serial % 2]
        self.map[at : at + len(raw)] = raw

    def models(self) -> list[str]:
        """Models known to have this tokenizer, as `TargetFacts.model` names them."""
        raw = (self.map[at : at + _MODEL_BYTES] for at in range(_MODELS, _HEADER, _MODEL_BYTES))
        return [each.rstrip(b"\0").decode("ascii", "replace") for each in raw if each[0]]

    def remember(self, models: Sequence[str]) -> None:
        """Say which models have this tokenizer; those that fit."""
        for at, model in zip(range(_MODELS, _HEADER, _MODEL_BYTES), models, strict=False):  # either may be the shorter
            raw = model.encode("ascii", "replace")[:_MODEL_BYTES].ljust(_MODEL_BYTES, b"\0")
            self.map[at : at + _MODEL_BYTES] = raw

    @property
    def n_held(self) -> int:
        """Tokens that can be found."""
        return min(self.counters().n_written, self.facts.capacity)

    def read(self, first: int, n: int) -> list[int]:
        """The tokens at `n` positions from `first` on, across the ring's seam too."""
        first %= self.facts.capacity
        found = self.tokens[first : first + n].tolist()
        return found if len(found) == n else found + self.tokens[: n - len(found)].tolist()

    def expect_soon(self) -> None:
        """Have the system read the file ahead, so that no round waits for a disk."""
        if hasattr(mmap, "MADV_WILLNEED"):
            with contextlib.suppress(OSError):  # a hint: without it the pages come one by one
                self.map.madvise(mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        for view in (self.tokens, self.chain, self.long_heads, self.short_heads):
            view.release()
        with contextlib.suppress(BufferError):  # an array still looks at it, and frees it with itself
            self.map.close()
