"""Text to token ids and back, end tokens, and metadata of a loaded model, through llama.cpp's own tokenizer.

Knows nothing of contexts and caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import repeat
from typing import Any

from edgespec.errors import ModelError
from edgespec.target import lib

_MAX_TEXT_BYTES = 2**31 - 1  # llama_tokenize takes an int32 length


class Vocab:
    """The tokenizer of one model. Valid as long as the model is loaded."""

    def __init__(self, model: int) -> None:
        native = lib.native()
        self._native: Any = native
        self._model = model
        self._vocab: int = native.llama_model_get_vocab(model)
        self.n_tokens = int(native.llama_vocab_n_tokens(self._vocab))
        self.bos = int(native.llama_vocab_bos(self._vocab))
        self.eos = int(native.llama_vocab_eos(self._vocab))
        self._adds_bos = bool(native.llama_vocab_get_add_bos(self._vocab)) and self.bos >= 0
        self.eog = self._end_tokens()
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(256)

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`.

        `special` parses control tokens written in the text. `bos` puts the start token first where the model was
        trained with one and the text does not begin with it already. Lone surrogates become U+FFFD.

        Raises:
            ModelError: the text is too long to tokenize (2 GiB).
        """
        data = _utf8(text)
        if len(data) > _MAX_TEXT_BYTES:
            raise ModelError(f"a text of {len(data)} bytes cannot be tokenized: shorten it")
        room = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            n_ids = self._native.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
            if n_ids >= 0:
                break
            if -n_ids <= room:
                raise ModelError("llama.cpp could not tokenize the text: shorten it")
            room = -n_ids  # a negative answer is the size it needs
        tokens = ids[:n_ids]
        if bos and self._adds_bos and tokens[:1] != [self.bos]:
            tokens.insert(0, self.bos)
        return tokens

    def piece(self, token: int) -> bytes:
        """Bytes of one token as shown to a reader, possibly part of a character; control tokens give b''.

        Raises:
            ModelError: the id is outside the vocabulary.
        """
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token, special=False)
        return known

    def written(self, token: int) -> str:
        """How a token is written in a chat template, control tokens included; "" for an absent one (negative id)."""
        return "" if token < 0 else self._read_piece(token, special=True).decode("utf-8", "replace")

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise ModelError(f"token id {token} is outside the vocabulary of {self.n_tokens}")
        buffer = self._buffer
        call: Callable[..., int] = self._native.llama_token_to_piece
        size = call(self._vocab, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = call(self._vocab, token, buffer, len(buffer), 0, special)
        return ctypes.string_at(buffer, max(0, size))

    def _end_tokens(self) -> frozenset[int]:
        is_eog = lib.symbol("llama_vocab_is_eog", ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int32))
        vocab = ctypes.c_void_p(self._vocab)
        marks = map(is_eog, repeat(vocab), range(self.n_tokens))
        ends = {token for token, mark in enumerate(marks) if mark}
        named = (self.eos, int(self._native.llama_vocab_eot(self._vocab)))
        return frozenset(ends | {token for token in named if token >= 0})

    def metadata(self, key: str) -> str | None:
        """A scalar or string of the GGUF's metadata as text; None where the key is absent or an array."""
        name = key.encode("utf-8", "replace")
        call: Callable[..., int] = self._native.llama_model_meta_val_str
        size = call(self._model, name, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        call(self._model, name, buffer, size + 1)
        return buffer.raw[:size].decode("utf-8", "replace")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Pairs of surrogates join into the character they stand for; single ones become U+FFFD.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
