"""Generated text with the target's states, in one file that only grows: what a kill leaves unfinished is cut off.

For each answer: the tokens of prompt and answer, the state from which each token of the answer was drawn (float16), and
the likeliest tokens there with their log-probabilities. Some 1.3 KB a token for a state of 576 and 32 likeliest tokens.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgespec.errors import DrafterError

MAGIC = b"edgespec text 1\n"
_HEAD = struct.Struct("<4sIIII")
_MARK = b"answ"
_MAX_META = 1 << 16

Ids = npt.NDArray[np.int32]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What a file's states belong to."""

    model: str
    """sha256 that models of the same trained weights share."""
    n_hidden: int
    n_vocab: int
    n_top: int
    """Likeliest tokens kept with each state."""

    @property
    def id_bytes(self) -> int:
        """Of one of the likeliest tokens."""
        return 2 if self.n_vocab <= 1 << 16 else 4

    @property
    def token_bytes(self) -> int:
        """Of one token of an answer."""
        return 4 + 2 * self.n_hidden + self.n_top * (2 + self.id_bytes)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; the arrays of `n_answer` rows are of its tokens, one after the other."""

    meta: Mapping[str, Any]
    tokens: Ids
    """Prompt, then answer."""
    hidden: Halves
    top: npt.NDArray[Any]
    """Ids of the likeliest tokens, likeliest first."""
    logprobs: Halves

    @property
    def n_answer(self) -> int:
        """Tokens of the answer."""
        return len(self.hidden)

    @property
    def n_prompt(self) -> int:
        """Tokens before it."""
        return len(self.tokens) - len(self.hidden)


class TextFile:
    """A file of answers, for reading or, by one process at a time, for adding to. A context manager."""

    def __init__(self, path: Path, facts: TextFacts, *, writing: bool = False) -> None:
        """Open it, or make it where it is to be written; a torn end is cut off then, and passed over else.

        Raises:
            DrafterError: it is of another model, locked by another writer, or cannot be read or made.
        """
        self.path, self.facts = path, facts
        self._places: list[tuple[int, int, int, int]] = []
        self._map: npt.NDArray[np.uint8] | None = None
        self.n_tokens = 0
        self.next_number = 0
        try:
            if writing:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: io.BufferedRandom | io.BufferedReader = path.open("a+b") if writing else path.open("rb")
        except OSError as error:
            raise DrafterError(f"{path} cannot be used: {error.strerror or error}") from error
        try:
            if writing:
                _lock(self._file, path)
            self.n_bytes = self._scan(writing)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError | ValueError):
                raise DrafterError(f"{path} cannot be used: {error}") from error
            raise

    def _scan(self, writing: bool) -> int:
        self._file.seek(0, os.SEEK_END)
        end = self._file.tell()
        first = MAGIC + json.dumps(asdict(self.facts)).encode() + b"\n"
        if end == 0 and writing:
            self._file.write(first)
            self._file.flush()
            return len(first)
        self._file.seek(0)
        if self._file.read(len(first)) != first:
            raise DrafterError(f"{self.path} is text of another model, or of another version: delete it")
        at = len(first)
        while at + _HEAD.size <= end:
            self._file.seek(at)
            mark, n_all, n_answer, n_meta, _ = _HEAD.unpack(self._file.read(_HEAD.size))
            size = n_meta + self._body(n_all, n_answer)
            if mark != _MARK or n_answer > n_all or n_meta > _MAX_META or at + _HEAD.size + size > end:
                break
            meta = json.loads(self._file.read(n_meta))
            self._book(at, n_all, n_answer, n_meta, meta)
            at += _HEAD.size + size
        if writing and at < end:
            self._file.truncate(at)
        return at

    def _body(self, n_all: int, n_answer: int) -> int:
        return 4 * n_all + n_answer * (self.facts.token_bytes - 4)

    def _book(self, at: int, n_all: int, n_answer: int, n_meta: int, meta: Mapping[str, Any]) -> None:
        self._places.append((at, n_all, n_answer, n_meta))
        self.n_tokens += n_answer
        self.next_number = max(self.next_number, int(meta.get("number", -1)) + 1)

    def add(self, meta: Mapping[str, Any], tokens: Ids, hidden: Halves, top: npt.NDArray[Any], logprobs: Halves) -> int:
        """Write an answer behind the others; the bytes that took.

        Raises:
            OSError: there is no room.
        """
        raw = json.dumps(meta).encode()
        ids = top.astype(f"<u{self.facts.id_bytes}")
        parts = (tokens.astype("<i4"), hidden.astype("<f2"), ids, logprobs.astype("<f2"))
        body = raw + b"".join(part.tobytes() for part in parts)
        n_all, n_answer = len(tokens), len(hidden)
        assert len(body) == len(raw) + self._body(n_all, n_answer)
        head = _HEAD.pack(_MARK, n_all, n_answer, len(raw), zlib.crc32(body))
        assert not isinstance(self._file, io.BufferedReader)
        self._file.write(head + body)
        self._file.flush()
        self._book(self.n_bytes, n_all, n_answer, len(raw), meta)
        self.n_bytes += len(head) + len(body)
        return len(head) + len(body)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Answer]:
        """The answers in order, as views of the mapped file; damaged ones are passed over."""
        if self._places and (self._map is None or len(self._map) < self.n_bytes):
            self._map = np.memmap(self.path, np.uint8, "r", shape=(self.n_bytes,))
        for at, n_all, n_answer, n_meta in self._places:
            assert self._map is not None
            begin = at + _HEAD.size
            body = self._map[begin : begin + n_meta + self._body(n_all, n_answer)]
            if zlib.crc32(body.data) == _HEAD.unpack(self._map[at:begin].tobytes())[4]:
                yield self._answer(body, n_all, n_answer, n_meta)

    def _answer(self, body: npt.NDArray[np.uint8], n_all: int, n_answer: int, n_meta: int) -> Answer:
        facts, at = self.facts, n_meta
        arrays = []
        for dtype, shape in (
            ("<i4", (n_all,)), ("<f2", (n_answer, facts.n_hidden)),
            (f"<u{facts.id_bytes}", (n_answer, facts.n_top)), ("<f2", (n_answer, facts.n_top)),
        ):  # fmt: skip
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            # Through bytes: what lies in the file is not aligned.
            arrays.append(np.frombuffer(body[at : at + size].tobytes(), dtype).reshape(shape))
            at += size
        return Answer(json.loads(body[:n_meta].tobytes()), *arrays)

    def close(self) -> None:
        """Close it, and let others write."""
        self._map = None
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(file: io.BufferedRandom | io.BufferedReader, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # POSIX only; elsewhere nobody is kept from starting it twice
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DrafterError(f"another training writes to {path}: wait for it, or --only fit what is there") from error


def matched(tokens: Ids, n_prompt: int) -> npt.NDArray[np.bool_]:
    """For each token of the answer, whether the two before it stand earlier in the text: n-grams propose there."""
    if len(tokens) < 3:
        return np.zeros(len(tokens) - n_prompt, np.bool_)
    pairs = tokens[:-1].astype(np.int64) << 32 | tokens[1:].astype(np.int64)
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    known = first[inverse] < np.arange(len(pairs))
    # Pair i ends at token i + 1, before token i + 2.
    padded = np.concatenate((np.zeros(2, np.bool_), known[:-1]))
    return padded[n_prompt:]
