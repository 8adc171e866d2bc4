"""The file of the store: bounded, private, shared by processes, sound whatever is killed or damaged."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_tools import DIGEST, FACTS, N_VOCAB, SMALL, draft, write

from edgespec.core.drafting import Drafting
from edgespec.draft import store_writer
from edgespec.draft.store import Learner, StoreDrafter, open_store
from edgespec.draft.store_file import DAMAGED, SUFFIX, DamagedError, StoreFile, largest
from edgespec.draft.store_writer import MAX_BYTES, Writer, forget


def test_ten_million_tokens_stay_within_the_bound(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with Writer(tmp_path, DIGEST, 50_000) as writer:
        for _ in range(10):
            newest = random.integers(0, 50_000, 1_000_000)
            assert writer.add(newest) == 1_000_000
        path = writer.path
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= MAX_BYTES
    assert StoreFile(path).n_held == largest(MAX_BYTES) > 4_000_000
    drafter = StoreDrafter(path=path)
    for at in random.integers(0, 990_000, 200):
        context, after = newest[at : at + 8].tolist(), newest[at + 8 : at + 12].tolist()
        assert drafter.propose(context, 4).tokens == tuple(after)
    drafter.close()


def test_the_oldest_make_room_and_positions_are_counted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [[n, *range(100, 100 + n % 7), n + 1, n + 2, n + 3, n + 4] for n in range(600)]
    monkeypatch.setattr(store_writer, "_LAST", 3000)
    path = write(tmp_path, *texts, max_bytes=SMALL)
    assert path.stat().st_size <= SMALL
    assert StoreFile(path).counters().n_written < 3000 + 1024
    assert draft(path, texts[-1][:-1]) == (texts[-1][-1],)
    assert draft(path, texts[-80][:-1]) == (texts[-80][-1],)
    assert draft(path, texts[0][:-1]) == ()
    whole = list(range(1000)) * 2
    assert draft(write(tmp_path, whole, max_bytes=SMALL), whole[:900]) == tuple(range(900, 908))


def test_a_file_grows_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    texts = [random.integers(0, N_VOCAB, 9_000).tolist() for _ in range(20)]
    sizes = [write(tmp_path, text).stat().st_size for text in texts]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3
    path = write(tmp_path)
    for text in texts:
        assert draft(path, text[:50], 3) == tuple(text[50:53])
    n_held = StoreFile(path).n_held
    with Writer(tmp_path, DIGEST, N_VOCAB) as writer:
        assert [writer.add(text) for text in texts] == [0] * 20  # all there, and known to be
    assert StoreFile(path).n_held == n_held
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = write(tmp_path / "data" / "store", [1, 2, 3])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    for bad in ([1, -1], [N_VOCAB]):
        with Writer(tmp_path, DIGEST, N_VOCAB) as writer, pytest.raises(ValueError, match="outside the vocabulary"):
            writer.add(bad)


KILL = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edgespec.draft import store_file, store_writer
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
def patch():
    if sys.argv[2] == "tokens":
        np.concatenate = die
    if sys.argv[2] == "chain":
        np.append = die
    if sys.argv[2] == "heads":
        count = store_file.StoreFile.count
        store_file.StoreFile.count = lambda self, n, dirty: count(self, n, dirty=dirty) if dirty else die()
    if sys.argv[2] == "growing":
        store_writer._carry = die
with store_writer.Writer(Path(sys.argv[1]), "ab" * 32, 1000) as writer:
    text = np.append(np.arange(500, 900), 0)
    if sys.argv[2] == "growing":
        text = np.arange(100_000) % 1000
    roomy = writer._roomy
    def then(n):
        file = roomy(n) if sys.argv[2] != "growing" else None
        patch()
        return file or roomy(n)
    writer._roomy = then
    writer.add(text)
"""


@pytest.mark.parametrize("when", ["tokens", "chain", "heads", "growing"])
def test_a_kill_loses_the_text_that_was_being_written_and_nothing_else(tmp_path: Path, when: str) -> None:
    old = [list(range(n, n + 60)) for n in (0, 200, 400)]
    path = write(tmp_path, *old)
    before = StoreDrafter(path=path)
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(tmp_path), when], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert StoreFile(path).counters().dirty == (when != "growing")
    for text in old:  # at once, for who reads, for who has been reading, and after the next writer
        assert before.propose(text[:20], 4).tokens == tuple(text[20:24])
        assert draft(path, text[:20], 4) == tuple(text[20:24])
    assert draft(path, list(range(600, 650))) == ()
    write(tmp_path, [900, 901, 902, 903, 904])
    assert not StoreFile(path).counters().dirty
    for text in [*old, [900, 901, 902, 903]]:
        assert draft(path, text[:3], 1) == (text[3],)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def cut_short(raw: bytearray) -> None:
    del raw[-1:]


def emptied(raw: bytearray) -> None:
    raw.clear()


def flipped(raw: bytearray) -> None:
    raw[20] ^= 1


def no_counters(raw: bytearray) -> None:
    raw[512:1100] = bytes(588)


@pytest.mark.parametrize("damage", [cut_short, emptied, flipped, no_counters])
def test_a_damaged_store_is_set_aside_and_said_once(tmp_path: Path, damage: object) -> None:
    for writes_first in (True, False):
        path = write(tmp_path, [1, 2, 3, 4, 5])
        raw = bytearray(path.read_bytes())
        damage(raw)  # type: ignore[operator]  # one of the functions above
        path.write_bytes(raw)
        if writes_first:
            with Writer(tmp_path, DIGEST, N_VOCAB) as writer:
                writer.add([7, 8, 9, 10])
            assert len(writer.notes) == 1
            assert writer.notes[0].startswith("what was learned for drafting begins anew: ")
            assert draft(path, [7, 8, 9]) == (10,)
        else:
            with pytest.raises(DamagedError, match="begins anew"):
                open_store(FACTS, tmp_path)
            assert open_store(FACTS, tmp_path) is None
        assert path.with_suffix(DAMAGED).read_bytes() == bytes(raw)
        forget(tmp_path, 0.0)


@given(st.lists(st.tuples(st.integers(0, SMALL - 1), st.integers(0, 255)), max_size=40))
def test_bytes_changed_anywhere_are_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    text = [n % 9 for n in range(300)]
    path = write(folder, text, [5, 6, 7, 5, 6, 7, 8], max_bytes=SMALL)
    raw = bytearray(path.read_bytes())
    for at, byte in changes:
        raw[at % len(raw)] = byte
    path.write_bytes(raw)
    try:
        drafting = Drafting(StoreDrafter(path=path), N_VOCAB)
    except DamagedError:
        pass
    else:
        for n in range(20):
            found = drafting.propose(text[: 20 + n], 8).tokens
            assert all(0 <= token < N_VOCAB for token in found)
        assert drafting.off_reason in (None, "store proposed invalid tokens 3 times")
        drafting.close()
    with Writer(folder, DIGEST, N_VOCAB, max_bytes=SMALL) as writer:
        assert writer.add([900, 901, 902, 903]) == 4
    assert draft(path, [900, 901, 902]) == (903,)


def test_a_writer_waits_for_no_other_and_a_learner_tries_again(tmp_path: Path) -> None:
    learner = Learner(FACTS, tmp_path)
    path = write(tmp_path, [1, 2, 3, 4])
    with Writer(tmp_path, DIGEST, N_VOCAB):
        with pytest.raises(BlockingIOError), Writer(tmp_path, DIGEST, N_VOCAB):
            pass
        learner.learn([5, 6, 7, 8])
        assert draft(path, [5, 6, 7]) == ()
    learner.learn([15, 16, 17, 18])
    assert draft(path, [5, 6, 7]) == (8,)
    assert draft(path, [15, 16, 17]) == (18,)
    learner.close()
    learner.close()
    assert learner.notes == []


MANY = """
import sys
from pathlib import Path
from edgespec.draft.store_writer import Writer
from edgespec.draft.store import StoreDrafter
me = int(sys.argv[2])
for n in range(40):
    with Writer(Path(sys.argv[1]), "ab" * 32, 1000, wait_s=60.0) as writer:
        writer.add([me, n, me, n, *range(n, n + 700)])
    drafter = StoreDrafter(path=writer.path)
    assert drafter.propose([me, n, me, n], 2).tokens == (n, n + 1), n
    drafter.close()
"""


def test_several_processes_write_and_read(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    running = [subprocess.Popen([*command, str(me)], stderr=subprocess.PIPE, text=True) for me in (900, 901, 902)]
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0, said
    path = next(tmp_path.glob(f"*{SUFFIX}"))
    assert StoreFile(path).n_held == 3 * 40 * 705
    for me in (900, 901, 902):
        assert draft(path, [me, 7, me, 7], 2) == (7, 8)


def test_forgetting_deletes_everything(tmp_path: Path) -> None:
    path = write(tmp_path, [1, 2, 3, 4])
    path.with_suffix(DAMAGED).write_bytes(b"private")
    (tmp_path / ".x.part").write_bytes(b"private")
    size = path.stat().st_size
    with Writer(tmp_path, DIGEST, N_VOCAB), pytest.raises(BlockingIOError):
        forget(tmp_path, 0.0)
    (tmp_path / ".x.part").write_bytes(b"private")
    assert forget(tmp_path, 0.0) == size + 14
    assert list(tmp_path.iterdir()) == []
    assert forget(tmp_path, 0.0) == forget(tmp_path / "none", 0.0) == 0


@pytest.mark.parametrize("missing", [True, False])
def test_where_blocks_cannot_be_asked_for_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if missing:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    path = write(tmp_path, [1, 2, 3, 4])
    assert path.stat().st_size > 2**20
    assert draft(path, [1, 2, 3]) == (4,)


def test_without_locks_nothing_is_kept_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    learner = Learner(FACTS, tmp_path)
    learner.learn([1, 2, 3, 4, 5])
    assert learner.notes == ["what is said is not kept for later drafts: this system has no such locks"]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_once_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    learner = Learner(FACTS, tmp_path / "store")
    learner.learn([1, 2, 3, 4, 5])
    learner.learn([1, 2, 3, 4, 6])
    learner.close()
    assert learner.notes == ["what is said is not kept for later drafts: No space left on device"]
    assert list((tmp_path / "store").iterdir()) == []
