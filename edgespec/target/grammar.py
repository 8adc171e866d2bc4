"""llama.cpp's grammar sampler as a `Guide`: which tokens a grammar lets through, and what it leaves no choice about.

llama.cpp ends the process where a token is accepted that its grammar does not allow, and takes a control token for the
text it is written as. So nothing is accepted here that was not asked about before, control tokens and null bytes are
never allowed, and the text stays valid UTF-8.

Text that is forced, such as the keys of an object, is let through in one way only: cut into tokens as the model's own
tokenizer cuts it. Otherwise a model that wants something else there spells it out in odd pieces, which is slow and
leads it astray. Source: llama-grammar.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgespec.core import gbnf
from edgespec.core.constraint import Forced
from edgespec.errors import ConstraintError
from edgespec.target import lib
from edgespec.target.vocab import Vocab

_ROOT = "root"
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""
_N_FEW = 512
_PROBES = (b"a", b"b", b"0", b"1")
_MAX_FORCED = 512
"""Most bytes that are looked ahead."""


class _Array(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class _Calls:
    """The C functions, with prototypes of their own."""

    def __init__(self) -> None:
        pointer = ctypes.c_void_p
        self.init = lib.symbol("llama_sampler_init_grammar", pointer, (pointer, ctypes.c_char_p, ctypes.c_char_p))
        self.apply = lib.symbol("llama_sampler_apply", None, (pointer, pointer))
        self.accept = lib.symbol("llama_sampler_accept", None, (pointer, ctypes.c_int32))
        self.clone = lib.symbol("llama_sampler_clone", pointer, (pointer,))
        self.free = lib.symbol("llama_sampler_free", None, (pointer,))


class _Candidates:
    """Room for token ids that are asked about."""

    def __init__(self, n: int) -> None:
        self.rows = np.zeros(n, _CANDIDATE)
        self.ids = self.rows["id"]
        self.logits = self.rows["logit"]
        self.array = _Array(self.rows.ctypes.data, n, -1, False)
        self.address = ctypes.addressof(self.array)


class Grammars:
    """Makes guides for one model."""

    def __init__(self, vocab: Vocab) -> None:
        """`vocab` must stay valid as long as guides are used."""
        self.vocab = vocab
        self.calls = _Calls()
        self.few = _Candidates(_N_FEW)
        self.one = _Candidates(1)
        self.end = vocab.eos if vocab.eos in vocab.eog else min(vocab.eog, default=-1)
        """The token that ends a text; -1 where the model has none."""

    def guide(self, grammar: str) -> LlamaGuide:
        """A guide at the beginning of a text; `grammar` begins with the rule `root`.

        Raises:
            ConstraintError: the grammar is not valid.
        """
        gbnf.check(grammar, _ROOT)
        with lib.captured_errors() as lines:
            sampler = self.calls.init(self.vocab.pointer, grammar.encode(), _ROOT.encode())
        if not sampler:
            raise ConstraintError(f"llama.cpp refused the grammar: {lines[-1] if lines else 'no reason given'}")
        return LlamaGuide(self, sampler)

    @functools.cached_property
    def singles(self) -> npt.NDArray[np.int64]:
        """The tokens that are a single ASCII character, and the end."""
        found: dict[bytes, int] = {}
        for char in map(chr, range(1, 128)):
            for text in (char, f"\n{char}"):  # some tokenizers put a space before a text
                for token in self.vocab.encode(text, special=False)[-1:]:
                    if self.vocab.piece(token) == char.encode():
                        found[char.encode()] = token
        if len(found) < 127:  # a tokenizer that does not give back what it was given
            found |= {piece: token for piece, token in self._bytes.items() if piece.isascii() and piece not in found}
        return np.array([*found.values(), *([self.end] if self.end >= 0 else [])], np.int64)

    @functools.cached_property
    def beyond(self) -> npt.NDArray[np.int64]:
        """The tokens that are a single byte of another character."""
        return np.array([token for piece, token in self._bytes.items() if not piece.isascii()], np.int64)

    @functools.cached_property
    def _bytes(self) -> dict[bytes, int]:
        """The tokens of one byte, found by looking at all: 0.1 s."""
        tokens = range(self.vocab.n_tokens)
        return {piece: token for token in tokens if len(piece := self.vocab.piece(token)) == 1 and piece != b"\0"}

    @functools.cached_property
    def probes(self) -> npt.NDArray[np.int64]:
        """Single bytes of which two may mostly come next where there is a choice."""
        return np.array([token for token in self.singles if self.vocab.piece(int(token)) in _PROBES], np.int64)

    def written(self, text: bytes, tokens: list[int]) -> list[int]:
        """The model's own tokens for `text`; `tokens`, its single bytes, where the tokenizer does not give it back."""
        # It may begin within a character, after a token that ended there, and end within one.
        n = next((i for i, byte in enumerate(text) if byte & 0xC0 != 0x80), len(text))
        whole = codecs.utf_8_decode(text[n:], "strict", False)[0]
        ids = [*tokens[:n], *self.vocab.encode(whole, special=False)]
        return ids if b"".join(map(self.vocab.piece, ids)) == text else tokens


class LlamaGuide:
    """The state of one grammar in one answer. Not for use by two threads at once, nor after the model is closed."""

    def __init__(self, grammars: Grammars, sampler: int, partial: bytes = b"") -> None:
        self._grammars = grammars
        self._vocab = grammars.vocab
        self._calls = grammars.calls
        self._sampler: Any = ctypes.c_void_p(sampler)
        self._partial = partial
        """The begun character at the end of the text."""
        self._forced: Forced | None = None
        weakref.finalize(self, self._calls.free, self._sampler)

    def only(self) -> int | None:
        """The only token that may come next, where forced text goes on; None where there may be several.

        The last token before a choice is left to the model: it may want to write it in one with what follows.
        """
        forced = self.forced()
        return forced.tokens[0] if len(forced.tokens) > 1 else None

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        only = self.only()
        return self._passes(token) if only is None else token == only

    def _passes(self, token: int) -> bool:
        """Whether the grammar lets `token` through."""
        if not self._fits(token):
            return False
        one = self._grammars.one
        one.ids[0] = token
        one.logits[0] = 0.0
        self._calls.apply(self._sampler, one.address)
        return bool(one.logits[0] == 0.0)

    def allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the token `ids` may come next."""
        only = self.only()
        if only is None:
            return self._passing(ids)
        just: npt.NDArray[np.bool_] = ids == only
        return just

    def _passing(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        n = len(ids)
        room = self._grammars.few if n <= _N_FEW else _Candidates(n)
        room.ids[:n] = ids
        room.logits[:n] = 0.0
        room.array.size = n
        self._calls.apply(self._sampler, room.address)
        may: npt.NDArray[np.bool_] = room.logits[:n] == 0.0
        for i in np.flatnonzero(may):
            may[i] = self._fits(int(ids[i]))
        return may

    def accept(self, token: int) -> None:
        """Go on behind `token`.

        Raises:
            ConstraintError: it is not allowed.
        """
        if not self.allows(token):
            raise ConstraintError(f"token {token} is not allowed by the grammar here")
        forced = self.forced()
        self._advance(token)
        # What is left of forced text stays cut into tokens as it was; its last token is left to the model.
        follows = len(forced.tokens) > 1 and token == forced.tokens[0]
        self._forced = Forced(forced.tokens[1:], forced.ends) if follows else None

    def _advance(self, token: int) -> None:
        """Go on behind a token that the grammar lets through."""
        self._calls.accept(self._sampler, token)
        if token not in self._vocab.eog:
            self._partial = _rest(self._partial + self._vocab.piece(token))

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may come next, one after the other, before the first that may not."""
        if not tokens or not self.allows(tokens[0]):
            return 0
        scout = self._clone()
        for n, token in enumerate(tokens):
            if not scout.allows(token):
                return n
            scout.accept(token)
        return len(tokens)

    def forced(self) -> Forced:
        """What must come next, up to the next choice, in the tokens that it must be written with."""
        if self._forced is None:
            text, singles, ends = self._look_ahead()
            end = (self._grammars.end,) if ends else ()
            self._forced = Forced((*self._grammars.written(text, singles), *end), ends)
        return self._forced

    def _look_ahead(self) -> tuple[bytes, list[int], bool]:
        """The text that must come next, the same in tokens of one byte, and whether nothing may follow it."""
        grammars = self._grammars
        if np.count_nonzero(self._passing(grammars.probes)) > 1:
            return b"", [], False
        scout, singles, ends = self, list[int](), False
        while len(singles) < _MAX_FORCED and not ends:
            found = grammars.singles[scout._passing(grammars.singles)]
            if not len(found):
                found = grammars.beyond[scout._passing(grammars.beyond)]
            if len(found) != 1:
                break
            token = int(found[0])
            ends = token == grammars.end
            if not ends:
                scout = self._clone() if scout is self else scout
                scout._advance(token)
                singles.append(token)
        return b"".join(map(self._vocab.piece, singles)), singles, ends

    def _clone(self) -> Self:
        clone = type(self)(self._grammars, self._calls.clone(self._sampler), self._partial)
        clone._forced = self._forced
        return clone

    def _fits(self, token: int) -> bool:
        """Whether a token has text, and the text stays valid UTF-8 with it; the end may not cut a character."""
        if token in self._vocab.eog:
            return not self._partial
        piece = self._vocab.piece(token)
        if not piece or 0 in piece:
            return False
        if not self._partial and piece.isascii():
            return True
        try:
            codecs.utf_8_decode(self._partial + piece, "strict", False)
        except UnicodeDecodeError:
            return False
        return True


def _rest(data: bytes) -> bytes:
    """The begun character at the end of valid UTF-8."""
    return b"" if data.isascii() else data[codecs.utf_8_decode(data, "strict", False)[1] :]
