"""Adding to the store: under a lock, in an order that a kill at any point leaves sound, never beyond its bound."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from edgespec.draft.store_file import (
    DAMAGED,
    END,
    LONG,
    SHORT,
    STEP,
    SUFFIX,
    UNFINISHED,
    WEIGHTS,
    DamagedError,
    Facts,
    StoreFile,
    largest,
)

Words = npt.NDArray[np.uint32]

MAX_BYTES = 64 * 2**20
"""Four million tokens, some 15 MB of text."""
_FIRST = 64 * STEP
"""Tokens that a new file has room for: one megabyte."""
_CHUNK = 2**20
_ROW = 4
"""Places that a text may have in the list of those that are there as a whole."""
_LAST = 2**32 - 2**28
"""Tokens ever written from which on they are counted anew, so that positions stay in four bytes."""


class Writer:
    """The store of one tokenizer in a folder, for who adds to it. A context manager that holds the folder's lock."""

    def __init__(
        self, folder: Path, digest: str, n_vocab: int, *, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> None:
        """Nothing is touched before it is entered; there it waits so long for other writers."""
        self.notes: list[str] = []
        self.path = path_of(folder, digest)
        self._digest = digest
        self._n_vocab = n_vocab
        self._max_capacity = largest(max_bytes)
        self._wait_s = wait_s
        self._file: StoreFile | None = None
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Lock the folder.

        Raises:
            BlockingIOError: others write.
            OSError: the folder cannot be made, locked or read.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.enter_context(locked(self.path.parent, self._wait_s))
        try:
            for left in self.path.parent.glob(f".*{UNFINISHED}"):  # by a writer that was killed
                left.unlink()
            self._file = self._open()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock it."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.close()

    def add(self, tokens: Sequence[int] | npt.NDArray[np.integer], model: str | None = None) -> int:
        """Take in a text, unless it is there as a whole; return how many tokens were. `model` has this tokenizer.

        Raises:
            OSError: there is no room.
            ValueError: an id is outside the vocabulary.
        """
        text = np.asarray(tokens, np.int64)
        if not len(text):
            return 0
        if text.min() < 0 or text.max() >= self._n_vocab:
            raise ValueError(f"an id is outside the vocabulary of {self._n_vocab}")
        words = np.append(text, END).astype(np.uint32)[-self._max_capacity :]
        file = self._roomy(len(words))
        if model is not None and model not in (models := file.models()):
            file.remember([model, *models])
        names, ends = _texts(file)
        name = int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=8).digest(), "little")
        slot = _slot(names, ends, name)
        n_written = file.counters().n_written
        n_back = n_written - int(ends[slot]) + len(words)
        if names[slot] == name and ends[slot] and n_back <= file.facts.capacity:
            return 0
        _append(file, words)
        names[slot], ends[slot] = name, n_written + len(words)
        return len(words) - 1

    def _open(self) -> StoreFile | None:
        """The file as it is, its index made anew where a writer was killed; None where there is none yet."""
        try:
            file = StoreFile(self.path, writing=True)
            if (file.facts.digest, file.facts.n_vocab) != (self._digest, self._n_vocab):
                raise DamagedError(f"{self.path.name} is of another tokenizer")
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self.notes.append(set_aside(self.path, error))
            return None
        return self._rebuilt(file, file.facts.capacity) if file.counters().dirty else file

    def _roomy(self, n_more: int) -> StoreFile:
        """The file with room for so many tokens, as far as it may grow."""
        old = self._file
        n_written, capacity = (old.counters().n_written, old.facts.capacity) if old is not None else (0, 0)
        wanted = min(self._max_capacity, min(capacity, n_written) + n_more)
        if old is not None and wanted <= capacity and n_written < _LAST:
            return old
        larger = max(_FIRST, capacity)
        while larger < wanted:
            larger *= 2
        self._file = None
        self._file = self._rebuilt(old, min(larger, self._max_capacity))
        return self._file

    def _rebuilt(self, old: StoreFile | None, capacity: int) -> StoreFile:
        """A new file with the newest tokens of the old one, in its place."""
        path = _blank(self.path, Facts(self._digest, self._n_vocab, capacity))
        try:
            new = StoreFile(path, writing=True)
            if old is not None:
                n_written = old.counters().n_written
                n_kept = min(old.n_held, capacity)
                held = _ring(_part(old, 0), n_written - n_kept, n_kept)
                # What a killed writer left may be anything.
                held[held >= self._n_vocab] = END
                _append(new, held)
                _carry(old, new, n_written - n_kept)
                new.remember(old.models())
                old.close()
            path.replace(self.path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        new.path = self.path
        return new


def path_of(folder: Path, digest: str) -> Path:
    """Where the store of a tokenizer lies."""
    return folder / f"{digest[:32]}{SUFFIX}"


def set_aside(path: Path, error: DamagedError) -> str:
    """Take a file that is of no use out of the way; a line for the user.

    Raises:
        OSError: it cannot be.
    """
    path.replace(path.with_suffix(DAMAGED))
    return f"what was learned for drafting begins anew: {error}; it is kept as {path.with_suffix(DAMAGED).name}"


def forget(folder: Path, wait_s: float) -> int:
    """Delete all stores, whole, damaged or unfinished; return the bytes freed.

    Raises:
        BlockingIOError: others write for longer than `wait_s` seconds.
        OSError: something cannot be deleted.
    """
    if not folder.is_dir():
        return 0
    n_bytes = 0
    with locked(folder, wait_s):
        for path in list(folder.iterdir()):
            if path.suffix in (SUFFIX, DAMAGED, UNFINISHED):
                n_bytes += path.stat().st_size
                path.unlink()
    return n_bytes


@contextlib.contextmanager
def locked(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process at the latest.

    Raises:
        BlockingIOError: others hold it for longer than `wait_s` seconds.
        OSError: there is no such folder, or its file system has no locks.
    """
    try:
        import fcntl
    except ImportError as error:  # POSIX only
        raise OSError(errno.ENOTSUP, "this system has no such locks") from error
    handle = os.open(folder, os.O_RDONLY)
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _blank(path: Path, facts: Facts) -> Path:
    """An empty file beside `path`, all its blocks there: a hole on a full disk would end the process that fills it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=UNFINISHED)  # of mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(facts.header())
            file.flush()
            _fill(file, facts.n_bytes)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _fill(file: BinaryIO, n_bytes: int) -> None:
    try:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        # Not on this system, or not on this file system.
        for first in range(file.tell(), n_bytes, _CHUNK):
            file.write(bytes(min(_CHUNK, n_bytes - first)))


def _part(file: StoreFile, part: int) -> Words:
    return np.frombuffer(file.map, np.uint32, file.facts.capacity, file.facts.begin(part))


def _texts(file: StoreFile) -> tuple[npt.NDArray[np.uint64], Words]:
    n, begin = file.facts.n_texts, file.facts.begin(4)
    return np.frombuffer(file.map, np.uint64, n, begin), np.frombuffer(file.map, np.uint32, n, begin + 8 * n)


def _slot(names: npt.NDArray[np.uint64], ends: Words, name: int) -> int:
    """Where a text is, or else the place of the oldest one in its row."""
    first = name % (len(names) // _ROW) * _ROW
    row = names[first : first + _ROW]
    same = np.flatnonzero(row == np.uint64(name))
    return first + int(same[0] if len(same) else np.argmin(ends[first : first + _ROW]))


def _ring(ring: Words, first: int, n: int) -> Words:
    """A copy of the tokens from position `first` on."""
    return ring[(first + np.arange(n)) % len(ring)]


def _append(file: StoreFile, words: Words) -> None:
    """Write tokens behind all others, then what leads to them; readers believe it with the last line."""
    n_written = file.counters().n_written
    file.count(n_written, dirty=True)
    n_chunk = min(_CHUNK, file.facts.capacity)
    for first in range(0, len(words), n_chunk):
        _index(file, n_written + first, words[first : first + n_chunk])
    file.count(n_written + len(words), dirty=False)


def _index(file: StoreFile, n_written: int, words: Words) -> None:
    tokens, chain, long_heads, short_heads = (_part(file, part) for part in range(4))
    capacity = file.facts.capacity
    n_before = min(n_written, LONG - 1)
    before = np.full(LONG - 1, END, np.uint32)
    before[LONG - 1 - n_before :] = _ring(tokens, n_written - n_before, n_before)
    at = n_written + np.arange(len(words))
    tokens[at % capacity] = words
    text = np.concatenate((before, words)).astype(np.uint64)
    total = np.zeros(len(words), np.uint64)
    buckets = {}
    for distance, weight in enumerate(WEIGHTS):
        first = LONG - 1 - distance
        total += text[first : first + len(words)] * np.uint64(weight)
        if distance + 1 in (SHORT, LONG):
            buckets[distance + 1] = ((total >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32)
    # By bucket, and in it by position: each leads to the one before it, the first to what the head knew.
    order = np.sort((buckets[SHORT] << np.uint64(32)) | np.arange(len(words), dtype=np.uint64))
    bucket, index = (order >> np.uint64(32)).astype(np.int64), (order & np.uint64(END)).astype(np.int64)
    same = bucket[1:] == bucket[:-1]
    earlier = short_heads[bucket]
    earlier[1:][same] = n_written + index[:-1][same] + 1
    chain[(n_written + index) % capacity] = earlier
    newest = np.append(~same, True)
    short_heads[bucket[newest]] = n_written + index[newest] + 1
    long_heads[buckets[LONG].astype(np.int64)] = at + 1  # of several for one bucket the last one stays


def _carry(old: StoreFile, new: StoreFile, n_less: int) -> None:
    """What texts are there as a whole, their positions `n_less` smaller."""
    (names, ends), (new_names, new_ends) = _texts(old), _texts(new)
    for at in np.flatnonzero(ends > n_less):
        slot = _slot(new_names, new_ends, int(names[at]))
        new_names[slot], new_ends[slot] = names[at], int(ends[at]) - n_less
