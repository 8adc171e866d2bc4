"""The target answers prompts, many at a time in one batch, and its states are written down.

A row of a wide batch costs a fraction of a pass of its own; a sequence that ends makes room for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import ModelError
from edgespec.interfaces import Message, Plan, Row
from edgespec.target.llama import LlamaTarget
from edgespec.target.template import ChatTemplate
from edgespec.train.keep_out import KeepOut
from edgespec.train.prompts import Prompt
from edgespec.train.text_file import TextFile

N_TOP = 32
CTX = 1024
"""Tokens of prompt and answer together."""
_LONGEST_PROMPT = 700
_BLOCK = 64
_LOOP = 40
"""So many tokens in a row that only repeat end an answer: there is nothing to learn from the rest of a loop."""
_ASK_TOKENS = 96
_ASK_TEMPERATURE = 0.9
_SHORTEST_QUESTION = 12
"""Characters; less is no question."""
_MARK = "\N{SYMBOL FOR START OF TEXT}"


@dataclass(slots=True)
class _Seat:
    """A sequence in the making."""

    seq_id: int
    prompt: Prompt
    messages: list[Message]
    asking: bool
    """The model writes the question; nothing is kept of its states."""
    tokens: list[int]
    n_prompt: int
    rng: np.random.Generator
    n_turn: int = 0
    hidden: list[npt.NDArray[np.float16]] = field(default_factory=list)
    top: list[npt.NDArray[Any]] = field(default_factory=list)
    logprobs: list[npt.NDArray[np.float16]] = field(default_factory=list)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    n_repeated: int = 0

    @property
    def n_answer(self) -> int:
        return len(self.tokens) - self.n_prompt

    def repeats(self) -> bool:
        """Whether the newest tokens only go on as the same pair of tokens went on before."""
        if len(self.tokens) >= 3:
            pair = (self.tokens[-3], self.tokens[-2])
            self.n_repeated = self.n_repeated + 1 if self.pairs.get(pair) == self.tokens[-1] else 0
            self.pairs[pair] = self.tokens[-1]
        return self.n_repeated >= _LOOP


class Generator:
    """Answers prompts with `target.options.n_seq_max` sequences side by side."""

    def __init__(
        self,
        target: LlamaTarget,
        template: ChatTemplate,
        file: TextFile,
        prompts: Iterable[Prompt],
        keep_out: KeepOut,
        seed: int,
    ) -> None:
        self._target, self._template, self._file = target, template, file
        self._prompts, self._keep_out, self._seed = iter(prompts), keep_out, seed
        self._again: deque[tuple[Prompt, list[Message], int]] = deque()
        self._seats: list[_Seat] = []
        self._free = list(range(target.options.n_seq_max))
        self.n_tokens = self.n_answers = 0
        """Written since the start."""

    def run(self, go_on: Callable[[], bool]) -> None:
        """Generate while `go_on` says so, or until there are no more prompts.

        Raises:
            OSError: there is no room.
            ModelError: a pass failed.
        """
        try:
            while go_on() and (self._fill() or self._seats):
                self._step()
        finally:
            for seat in self._seats:  # what is there of them is as good as any text
                self._write(seat)
            self._seats.clear()

    def _fill(self) -> bool:
        """Seat prompts while there is room; False: there are none left."""
        while self._free:
            if self._again:
                prompt, messages, n_turn = self._again.popleft()
            else:
                found = next(self._prompts, None)
                if found is None:
                    return False
                prompt, messages, n_turn = found, found.messages, 0
            asking = prompt.asked and n_turn == 0
            texts = [turn.content for turn in messages if turn.role == "user"]
            if not asking and self._keep_out.touches(texts):
                continue
            tokens = self._begin(messages, asking)
            if 1 < len(tokens) <= _LONGEST_PROMPT:
                self._seat(prompt, messages, n_turn, asking, tokens)
        return True

    def _begin(self, messages: list[Message], asking: bool) -> list[int]:
        """Tokens of a conversation up to where the model goes on."""
        if not asking:
            return self._target.encode(self._template.render(messages), bos=True)
        opening = messages[-1].content
        marked = [*messages[:-1], Message("user", _MARK)]
        text = self._template.render(marked, add_generation_prompt=False).partition(_MARK)[0]
        return self._target.encode(text + opening, bos=True)

    def _seat(self, prompt: Prompt, messages: list[Message], n_turn: int, asking: bool, tokens: list[int]) -> None:
        seq_id = self._free.pop()
        rng = np.random.default_rng((self._seed, prompt.number, n_turn, asking))
        seat = _Seat(seq_id, prompt, messages, asking, list(tokens), len(tokens), rng, n_turn)
        target = self._target
        target.clear(seq_id)
        for first in range(0, len(tokens) - 1, target.n_batch):
            chunk = tokens[first : min(first + target.n_batch, len(tokens) - 1)]
            target.eval([Plan(seq_id, first, chunk, rows=False)])
        self._seats.append(seat)

    def _step(self) -> None:
        """One pass that gives every sequence a token."""
        plans = [Plan(seat.seq_id, len(seat.tokens) - 1, seat.tokens[-1:], hidden=True) for seat in self._seats]
        rows = np.concatenate(self._target.eval(plans))
        ids, logits = likeliest(rows, N_TOP)
        logprobs = logits - _log_sum(logits)
        for seat, its_ids, its_logprobs in zip(self._seats, ids, logprobs, strict=True):
            temperature = _ASK_TEMPERATURE if seat.asking else seat.prompt.temperature
            token = int(its_ids[_drawn(its_logprobs, temperature, seat.rng)])
            if not seat.asking:
                state = self._target.hidden(seat.seq_id, 0)
                if state is None:
                    raise ModelError(f"{self._target.name} showed no hidden state")
                seat.hidden.append(state.astype(np.float16))
                seat.top.append(its_ids[:N_TOP])
                seat.logprobs.append(its_logprobs[:N_TOP].astype(np.float16))
            seat.tokens.append(token)
        for seat in [seat for seat in self._seats if self._is_over(seat)]:
            self._seats.remove(seat)
            self._free.append(seat.seq_id)
            self._end(seat)

    def _is_over(self, seat: _Seat) -> bool:
        most = _ASK_TOKENS if seat.asking else seat.prompt.max_tokens
        looped = seat.repeats()
        full = len(seat.tokens) >= CTX - 1
        return seat.tokens[-1] in self._target.eog or seat.n_answer >= most or looped or full

    def _end(self, seat: _Seat) -> None:
        ended = seat.tokens[-1] in self._target.eog
        pieces = seat.tokens[seat.n_prompt : -1 if ended else None]
        text = b"".join(map(self._target.piece, pieces)).decode("utf-8", "replace").strip()
        prompt = seat.prompt
        if seat.asking:
            question = f"{prompt.user}{' ' if prompt.user and text[:1].isalnum() else ''}{text}"
            if len(question) >= _SHORTEST_QUESTION:
                self._again.append((prompt, [*seat.messages[:-1], Message("user", question)], 1))
            return
        self._write(seat)
        if prompt.follow_up is not None and ended and text:
            more = [*seat.messages, Message("assistant", text), Message("user", prompt.follow_up)]
            self._again.append((replace(prompt, follow_up=None), more, seat.n_turn + 1))

    def _write(self, seat: _Seat) -> None:
        if seat.asking or len(seat.hidden) < 4:
            return
        prompt = seat.prompt
        meta = {
            "number": prompt.number, "group": prompt.group, "held_out": prompt.held_out, "turn": seat.n_turn,
            "asked": prompt.asked, "temperature": prompt.temperature, "seed": self._seed,
        }  # fmt: skip
        tokens = np.array(seat.tokens, np.int32)
        self._file.add(meta, tokens, np.stack(seat.hidden), np.stack(seat.top), np.stack(seat.logprobs))
        self.n_tokens += len(seat.hidden)
        self.n_answers += 1


def likeliest(rows: Row, n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ids and logits of each row's candidates, likeliest first: at least its `n` likeliest tokens, in order.

    The `n` likeliest lie in the `n` blocks whose best tokens are likeliest: all others need not be looked at. Where the
    vocabulary does not fill its last block, candidates behind the first `n` may be no tokens, of a logit of -inf.
    """
    n_rows, n_vocab = rows.shape
    n_blocks = -(-n_vocab // _BLOCK)
    if n_blocks * _BLOCK != n_vocab:
        rows = np.pad(rows, ((0, 0), (0, n_blocks * _BLOCK - n_vocab)), constant_values=-np.inf)
    blocks = rows.reshape(n_rows, n_blocks, _BLOCK)
    if n_blocks > n:
        best = np.argpartition(blocks.max(2), n_blocks - n, axis=1)[:, n_blocks - n :]
    else:
        best = np.broadcast_to(np.arange(n_blocks), (n_rows, n_blocks))
    logits = np.take_along_axis(blocks, best[:, :, None], axis=1).reshape(n_rows, -1)
    ids = (best[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(n_rows, -1)
    order = np.argsort(-logits, axis=1, kind="stable")[:, : min(n_vocab, 16 * n)]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(logits, order, 1)


def _log_sum(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    best = logits.max(1, keepdims=True)
    total: npt.NDArray[np.float32] = best + np.log(np.exp(logits - best).sum(1, keepdims=True))
    return total


def _drawn(logprobs: npt.NDArray[np.float32], temperature: float, rng: np.random.Generator) -> int:
    """The place of the token that is drawn, among the candidates: what is less likely is a thousandth at most."""
    if temperature == 0:
        return 0
    return int(np.argmax(logprobs / temperature + rng.gumbel(size=len(logprobs))))


def in_order(prompts: Callable[[int], Prompt | None], first: int) -> Iterable[Prompt]:
    """Prompts from number `first` on, those left out that there are not."""
    number, n_missing = first, 0
    while n_missing < 1000:
        found = prompts(number)
        number += 1
        n_missing = 0 if found is not None else n_missing + 1
        if found is not None:
            yield found


def width_choices() -> Sequence[int]:
    """Sequences side by side that are tried; edgespec's kernels make rows cheap up to 16."""
    return (8, 16, 24, 32)
