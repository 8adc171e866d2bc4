"""Generated text as arrays to train on and to measure with: one row a token, all answers one behind the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.errors import DrafterError
from edgespec.target.gguf_check import GGUFInfo
from edgespec.train.keep_out import KeepOut
from edgespec.train.text_file import Halves, Ids, TextFile, matched

Flags = npt.NDArray[np.bool_]
MATCHED_WEIGHT = 0.3
"""How often a position is trained on where n-grams propose, against one where they do not: there a drafter is asked."""


@dataclass(frozen=True, slots=True)
class Text:
    """Rows by token of the answers; row i holds what the target knew when it drew token i, and the token."""

    tokens: Ids
    hidden: Halves
    top: npt.NDArray[np.int32]
    logprobs: Halves
    n_after: npt.NDArray[np.int32]
    """Tokens of the same answer that follow."""
    matched: Flags
    """Whether n-grams propose something for this token."""
    held_out: Flags
    temperature: npt.NDArray[np.float32]
    group: npt.NDArray[np.str_]

    def places(self, *, held_out: bool, n_ahead: int = 1) -> npt.NDArray[np.int64]:
        """Rows that are followed by at least `n_ahead` others."""
        return np.flatnonzero((self.held_out == held_out) & (self.n_after >= n_ahead))


def touching(file: TextFile, piece: Callable[[int], bytes], kept_out: KeepOut) -> frozenset[int]:
    """Numbers, in the file's order, of answers whose prompts as the model read them share words with what is kept out.

    Text may have been generated earlier, with nothing to keep out: each answer is looked at whenever it is trained on.
    """
    prompts = (b"".join(map(piece, answer.tokens[: answer.n_prompt].tolist())) for answer in file)
    return frozenset(n for n, raw in enumerate(prompts) if kept_out.touches([raw.decode("utf-8", "replace")]))


def load(file: TextFile, max_bytes: int, left_out: frozenset[int] = frozenset()) -> Text:
    """The answers of a file but those `left_out`; where they are larger than `max_bytes`, every second, third, ... .

    Raises:
        DrafterError: there is nothing, or nothing held out.
    """
    row_bytes = 2 * file.facts.n_hidden + file.facts.n_top * 6 + 32
    step = max(1, -(-file.n_tokens * row_bytes // max_bytes))
    kept = [answer for number, answer in enumerate(file) if number % step == 0 and number not in left_out]
    if not kept or len({answer.meta["held_out"] for answer in kept}) < 2:
        raise DrafterError("there is too little text yet to train on and to measure with: generate for longer")
    sizes = [answer.n_answer for answer in kept]

    def by_answer(key: str) -> npt.NDArray[np.generic]:
        return np.repeat(np.array([answer.meta[key] for answer in kept]), sizes)

    return Text(
        np.concatenate([answer.tokens[answer.n_prompt :] for answer in kept]),
        np.concatenate([answer.hidden for answer in kept]),
        np.concatenate([answer.top for answer in kept]).astype(np.int32),
        np.concatenate([answer.logprobs for answer in kept]),
        np.concatenate([np.arange(size)[::-1] for size in sizes]).astype(np.int32),
        np.concatenate([matched(answer.tokens, answer.n_prompt) for answer in kept]),
        by_answer("held_out").astype(np.bool_),
        by_answer("temperature").astype(np.float32),
        by_answer("group").astype(np.str_),
    )


def vocabulary(text: Text, n: int) -> npt.NDArray[np.int64]:
    """The `n` tokens that stand most often in the text to train on, or are the target's first choice there."""
    rows = ~text.held_out
    seen = np.bincount(text.tokens[rows], minlength=1).astype(np.int64)
    likely = np.bincount(text.top[rows, 0], minlength=len(seen))
    seen = np.pad(seen, (0, len(likely) - len(seen))) + likely
    order = np.argsort(-seen, kind="stable")[:n]
    return np.sort(order[seen[order] > 0]).astype(np.int64)


def output_rows(info: GGUFInfo, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The target's own output rows of these tokens, by which a state becomes logits.

    Raises:
        DrafterError: the file has none.
    """
    found = {}
    for part in info.parts:
        for tensor in gguf.GGUFReader(Path(part)).tensors:
            if tensor.name in ("output.weight", "token_embd.weight"):
                found[tensor.name] = tensor
    if not found:
        raise DrafterError(f"{info.path.name} has no output rows")
    tensor = found["output.weight"] if "output.weight" in found else found["token_embd.weight"]
    rows: npt.NDArray[np.float32] = gguf.quants.dequantize(np.asarray(tensor.data[ids]), tensor.tensor_type)
    return rows.astype(np.float32)
