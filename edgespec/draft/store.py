"""The drafter that remembers: proposes what followed the newest tokens in earlier chats and in indexed documents.

What is remembered stays in the user's data folder, readable by its owner only. It knows tokens, not whose they are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec import paths
from edgespec.core.controller import chain_parents
from edgespec.core.offers import TargetFacts
from edgespec.draft.store_file import END, LONG, MASK, SHORT, SUFFIX, WEIGHTS, DamagedError, StoreFile
from edgespec.draft.store_writer import MAX_BYTES, Writer, path_of, set_aside
from edgespec.draft.suffix import CLEAR, DISPUTED, SEVERAL, kind_of
from edgespec.errors import DrafterError, EdgespecError
from edgespec.interfaces import NO_DRAFT, Draft

NAME = "store"
_DEPTH = 16
"""Newest tokens that a match is followed back over."""
_HOPS = 6
"""Occurrences that are looked at from one entry, newest first."""
_SHORT_WEIGHTS, _LONG_WEIGHTS = WEIGHTS[:SHORT], WEIGHTS[SHORT:LONG]
_HOPELESS = 0.2
"""A draft ends where reaching its end is this unlikely by its own claim."""
_LENGTHS = (3, 4, 6, 9, 16)
"""Lower bounds of the classes of match length."""
ALONE = 3
"""A fourth kind of agreement beside those of the suffix drafter: one occurrence, which nothing else speaks for or
against."""
_N_AGREEMENTS, _N_KINDS = 4, 3
_LENGTH_LOGIT = (-1.1, -0.9, -0.2, 0.7, 1.4)
_AGREEMENT_LOGIT = (1.5, -0.8, -0.65, 0.2)
_KIND_LOGIT = (0.2, -0.25, 0.35)
"""Logistic fit of "the pick is right" by match length, agreement and kind of token, on 1,200 tokens proposed where the
suffix drafter had nothing: 60 greedy answers (six Spec-Bench task groups), in the store the other questions with their
answers, or all of them answered at temperature 0.7. Short matches a little lower than fitted: a larger store has more
of them by chance. Prior only: experience replaces it."""
_CLASS_OF = [max(0, sum(n >= bound for bound in _LENGTHS) - 1) for n in range(_LENGTHS[-1] + 1)]
_CLAIMS = [
    1.0 / (1.0 + math.exp(-(by_length + by_agreement + by_kind)))
    for by_length in _LENGTH_LOGIT
    for by_agreement in _AGREEMENT_LOGIT
    for by_kind in _KIND_LOGIT
]
_CLEAR_SHARE = 0.66
_SEAM = 32
"""Newest tokens of a text by which it is found again in a longer one whose beginning is gone."""
_WORD = array("I").itemsize
_N_PENDING = 8
"""Texts that wait while other processes write; older ones are let go."""
_PATIENCE_S = 1.0
"""How long the last chance to write them is waited for."""


def folder() -> Path:
    """Where the stores are, one a tokenizer.

    Raises:
        ConfigError: no home folder is known.
    """
    return paths.data_dir() / "store"


def open_store(target: TargetFacts, where: Path | None = None) -> StoreFile | None:
    """The store of a target's tokenizer; None where there is none, or nothing is in it.

    Raises:
        DamagedError: it is of no use, and is out of the way now; in one line for the user.
        OSError: it cannot be read.
    """
    where = folder() if where is None else where
    file = _of_model(target, where)
    if file is None and any(where.glob(f"*{SUFFIX}")):
        path = path_of(where, target.tokenizer(target.n_vocab))
        try:
            file = StoreFile(path)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            raise DamagedError(set_aside(path, error)) from error
    if file is not None and not file.n_held:
        file.close()
        return None
    return file


def _of_model(target: TargetFacts, where: Path) -> StoreFile | None:
    """The store that says it is of this model's tokenizer: to name a tokenizer takes 0.1 s."""
    for path in sorted(where.glob(f"*{SUFFIX}")) if target.model is not None else ():
        try:
            file = StoreFile(path)
        except (DamagedError, FileNotFoundError):  # whose it is, and why, is seen where its tokenizer is named
            continue
        if target.model in file.models() and file.facts.n_vocab == target.n_vocab:
            return file
        file.close()
    return None


class StoreDrafter:
    """Proposes from the store of the target's tokenizer; before it has one it proposes nothing."""

    name = NAME
    inline = True
    """A look-up takes microseconds; there is nothing to wait for but the first read of a page."""
    dear = True
    """On a slow disk that first read shows: asked only while that pays."""

    def __init__(self, piece: Callable[[int], bytes] | None = None, path: Path | None = None) -> None:
        """`piece` gives a token's bytes; without it all tokens are of one kind. Without `path` `fit` finds the store.

        Raises:
            DamagedError: that is no store.
            OSError: it cannot be read.
        """
        self._piece = piece
        self._kinds: dict[int, int] = {}
        self._followed: Sequence[int] | None = None
        self._n_written = 0
        self._file = StoreFile(path) if path is not None else None

    def fit(self, target: TargetFacts) -> str | None:
        """Take the store of this target's tokenizer.

        Raises:
            DrafterError: there is none, or it cannot be read.
        """
        if self._file is None:
            try:
                self._file = open_store(target)
            except OSError as error:
                raise DrafterError(f"{error.filename or folder()} cannot be read: {error.strerror or error}") from error
            if self._file is None:
                raise DrafterError("nothing was learned for this tokenizer yet")
            self._file.expect_soon()
        return None

    def close(self) -> None:
        """Let go of the store."""
        if self._file is not None:
            self._file.close()
        self._file = self._followed = None

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """A chain of at most `limit` tokens: what followed the longest match, by the most of its occurrences.

        Raises:
            DamagedError, OSError: the store broke, or can no longer be read.
        """
        if context is not self._followed:
            self._followed = context
            self._refresh()
        if self._file is None or limit <= 0 or len(context) < SHORT:
            return NO_DRAFT
        newest = list(context[-_DEPTH:])
        newest.reverse()
        found = self._occurrences(self._file, newest)
        return self._follow(self._file, found, limit) if found else NO_DRAFT

    def _refresh(self) -> None:
        """For a new answer: the file that is there now, with what is in it now."""
        file = self._file
        if file is None:
            return
        try:
            inode = file.path.stat().st_ino
        except FileNotFoundError:  # forgotten
            self.close()
            return
        if inode != file.inode:
            self._file = StoreFile(file.path)
            file.close()
            file = self._file
        self._n_written = file.counters().n_written

    def _occurrences(self, file: StoreFile, newest: list[int]) -> list[tuple[int, int]]:
        """(tokens matched, position after them) of the newest occurrences, those of long matches if there are any."""
        capacity = file.facts.capacity
        total = 0
        for token, weight in zip(newest, _SHORT_WEIGHTS, strict=False):  # the newest ones
            total += token * weight
        short = ((total & MASK) >> 32) * capacity >> 32
        if len(newest) >= LONG:
            for token, weight in zip(newest[SHORT:LONG], _LONG_WEIGHTS, strict=True):
                total += token * weight
            long = ((total & MASK) >> 32) * capacity >> 32
            found = self._walk(file, file.long_heads[long], newest)
            if found and max(found)[0] >= LONG:
                return found
        return self._walk(file, file.short_heads[short], newest)

    def _walk(self, file: StoreFile, after: int, newest: list[int]) -> list[tuple[int, int]]:
        chain, capacity = file.chain, file.facts.capacity
        oldest = self._n_written - capacity
        found = []
        for _ in range(_HOPS):
            if after <= 0 or after <= oldest:
                break
            if after <= self._n_written:  # else it was written since, and what it leads to was not
                n_match = 0
                n = min(len(newest), after)
                before = file.read(after - n, n)
                before.reverse()
                for have, wanted in zip(before, newest, strict=False):  # shorter at the very beginning
                    if have != wanted:
                        break
                    n_match += 1
                if n_match >= SHORT:
                    found.append((n_match, after))
            earlier = chain[(after - 1) % capacity]
            if earlier >= after:
                break  # overwritten meanwhile
            after = earlier
        return found

    def _follow(self, file: StoreFile, found: list[tuple[int, int]], limit: int) -> Draft:
        """What came after the occurrences, as far as it is likely enough."""
        voters = [(n_match, file.read(after, min(limit, self._n_written - after))) for n_match, after in found]
        tokens: list[int] = []
        strength: list[int] = []
        confidence: list[float] = []
        hope = 1.0
        while len(tokens) < limit and hope > _HOPELESS:
            step = len(tokens)
            if len(voters) > 1:
                voters = [voter for voter in voters if len(voter[1]) > step and voter[1][step] != END]
            if not voters or len(voters[0][1]) <= step or voters[0][1][step] == END:
                break
            n_match, token, agreement = _elect(voters, step)
            if agreement != ALONE:
                voters = [voter for voter in voters if voter[1][step] == token]
            at = _CLASS_OF[min(n_match + step, _LENGTHS[-1])]
            kind = self._kinds.get(token)
            tokens.append(token)
            strength.append((at * _N_AGREEMENTS + agreement) * _N_KINDS + (self._kind(token) if kind is None else kind))
            confidence.append(_CLAIMS[strength[-1]])
            hope *= confidence[-1]
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), chain_parents(len(tokens)), tuple(strength), tuple(confidence))

    def _kind(self, token: int) -> int:
        """What kind of token it is; looked up once."""
        kind = self._kinds[token] = kind_of(self._piece(token) if self._piece is not None else b"")
        return kind


def _elect(voters: list[tuple[int, list[int]]], step: int) -> tuple[int, int, int]:
    """(length of the longest match, the token that most of its occurrences go on with, how clear that is)."""
    if len(voters) == 1:
        n_match, after = voters[0]
        return n_match, after[step], ALONE
    n_match = max(voter[0] for voter in voters)
    leaders = [after[step] for n, after in voters if n == n_match]
    token = leaders[0] if len(leaders) == 1 else max(leaders, key=leaders.count)  # of as many the newest
    if leaders.count(token) < len(leaders):
        return n_match, token, SEVERAL
    others = [after[step] for n, after in voters if n < n_match]
    clear = not others or others.count(token) > _CLEAR_SHARE * len(others)
    return n_match, token, CLEAR if clear else DISPUTED


class Learner:
    """Takes texts into the store of one target's tokenizer. What fails is no error for who talks: `notes` say it."""

    def __init__(self, target: TargetFacts, where: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        """`where`: the folder of the stores, by default the user's."""
        self.notes: list[str] = []
        self._target = target
        self._where = where
        self._max_bytes = max_bytes
        self._pending: list[Sequence[int]] = []
        self._digest: str | None = None
        self._failed = False

    def learn(self, text: Sequence[int], before: Sequence[int] = ()) -> None:
        """Take in what is new in a text since it was `before`; where another process writes, with the next one."""
        new = text[max(0, n_known(text, before) - LONG) :]
        if len(new) > SHORT and not self._failed:
            self._pending = [*self._pending[1 - _N_PENDING :], tuple(new)]
            self._write(0.0)

    def close(self) -> None:
        """Take in what still waits. May be called twice."""
        if self._pending:
            self._write(_PATIENCE_S)
            self._pending = []

    def _write(self, wait_s: float) -> None:
        target = self._target
        try:
            where = folder() if self._where is None else self._where
            if self._digest is None:
                known = _of_model(target, where)
                self._digest = known.facts.digest if known is not None else target.tokenizer(target.n_vocab)
                if known is not None:
                    known.close()
            with Writer(where, self._digest, target.n_vocab, max_bytes=self._max_bytes, wait_s=wait_s) as writer:
                for text in self._pending:
                    writer.add(text, target.model)
            self.notes += writer.notes
            self._pending = []
        except BlockingIOError:
            return
        except (OSError, EdgespecError) as error:
            self._failed, self._pending = True, []
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self.notes.append(f"what is said is not kept for later drafts: {why}")


def n_known(text: Sequence[int], before: Sequence[int]) -> int:
    """How much of the front of a text is known where `before` is; turns of that may have been left out meanwhile."""
    n_same = next((i for i, (old, new) in enumerate(zip(before, text, strict=False)) if old != new), None)
    if n_same is None:
        return min(len(before), len(text))
    if len(before) < _SEAM:
        return n_same
    tail, whole = array("I", before[-_SEAM:]).tobytes(), array("I", text).tobytes()
    at = whole.rfind(tail)
    while at % _WORD and at >= 0:
        at = whole.rfind(tail, 0, at + len(tail) - 1)
    return max(n_same, at // _WORD + _SEAM) if at >= 0 else n_same
