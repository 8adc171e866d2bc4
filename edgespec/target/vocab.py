"""Text to token ids and back, end tokens, and metadata of a loaded model, through llama.cpp's own tokenizer.

Knows nothing of contexts and caches.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import threading
from collections.abc import Callable
from itertools import repeat
from typing import Any

from edgespec.errors import ModelError
from edgespec.target import lib

_MAX_TEXT_BYTES = 2**31 - 1  # llama_tokenize takes an int32 length
_BPE = 2  # llama_vocab_type
# Splitters written by hand in llama.cpp's unicode.cpp. All others go through std::regex, which recurses once a
# character: an unbroken run of some ten thousand characters then overflows the stack and kills the process.
_HAND_WRITTEN = frozenset(
    {"llama-bpe", "llama3", "gpt-2", "smollm", "qwen2", "qwen35", "command-r", "falcon", "mpt", "refact", "starcoder"}
)
_LONG_RUN = re.compile(r"(?<!\S)\S{1000,}|(?<!\s)\s{1000,}")
_LONGEST_RUN = 200_000
_STACK_BYTES_PER_CHARACTER = 1024  # 250 to 400 were measured
_PAGE = 1 << 16  # a multiple of every page size in use
_stack_lock = threading.Lock()


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
        kind = int(native.llama_vocab_type(self._vocab))
        self._recurses = kind == _BPE and self.metadata("tokenizer.ggml.pre") not in _HAND_WRITTEN
        self._pieces: dict[int, bytes] = {}

    @property
    def pointer(self) -> ctypes.c_void_p:
        """llama.cpp's vocabulary, for its samplers."""
        return ctypes.c_void_p(self._vocab)

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`.

        `special` parses control tokens written in the text. `bos` puts the start token first where the model was
        trained with one and the text does not begin with it already. Lone surrogates become U+FFFD.

        Raises:
            ModelError: the text is too long to tokenize (2 GiB), or holds an unbroken run of characters that this
                model's tokenizer cannot take.
        """
        data = _utf8(text)
        if len(data) > _MAX_TEXT_BYTES:
            raise ModelError(f"a text of {len(data)} bytes cannot be tokenized: shorten it")
        run = max((len(match[0]) for match in _LONG_RUN.finditer(text)), default=0) if self._recurses else 0
        tokens = _on_deep_stack(run, lambda: self._tokenize(data, special)) if run else self._tokenize(data, special)
        if bos and self._adds_bos and tokens[:1] != [self.bos]:
            tokens.insert(0, self.bos)
        return tokens

    def _tokenize(self, data: bytes, special: bool) -> list[int]:
        room = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * room)()
            n_ids = self._native.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
            if n_ids >= 0:
                return ids[:n_ids]
            if -n_ids <= room:
                raise ModelError("llama.cpp could not tokenize the text: shorten it")
            room = -n_ids  # a negative answer is the size it needs

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

    def digest(self, n_tokens: int) -> str:
        """sha256 over the first `n_tokens` tokens as they are written, control tokens included; 0.1 s for 50,000."""
        state = hashlib.sha256()
        for token in range(n_tokens):
            piece = self._read_piece(token, special=True)
            state.update(len(piece).to_bytes(4, "little") + piece)
        return state.hexdigest()

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise ModelError(f"token id {token} is outside the vocabulary of {self.n_tokens}")
        buffer = ctypes.create_string_buffer(256)  # not shared: several threads may ask at a time
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


def _on_deep_stack(run: int, work: Callable[[], list[int]]) -> list[int]:
    """Do `work` on a thread whose stack is deep enough for a run of `run` characters."""
    if run > _LONGEST_RUN:
        raise ModelError(f"the text holds {run} characters in a row without a break: this model's tokenizer takes "
                         f"{_LONGEST_RUN}; break it up")  # fmt: skip
    results: list[list[int]] = []
    with _stack_lock:
        before = threading.stack_size((1 << 20) + run * _STACK_BYTES_PER_CHARACTER // _PAGE * _PAGE)
        try:
            thread = threading.Thread(target=lambda: results.append(work()), name="edgespec-tokenize")
            thread.start()
        except RuntimeError as error:
            raise ModelError(f"no memory to tokenize a run of {run} characters: break the text up") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if not results:
        raise ModelError("llama.cpp could not tokenize the text: shorten it")
    return results[0]
