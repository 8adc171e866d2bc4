"""Rows and a draft tree to the tokens the target itself chooses.

The target is sampled at each position along the tree; a drafted token is kept while it equals the sample. No draft
probability is needed, and the text is what drawing one token at a time would have given. Where an answer
ends is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.logprobs import logprobs_of
from edgespec.core.sampling import Sampler
from edgespec.interfaces import ROOT, Draft, Rows, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round decided: the target's tokens, and the draft nodes that agreed with all but the last of them."""

    tokens: tuple[int, ...]
    path: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token where the sampling asks for them."""


def verify(rows: Rows, draft: Draft, sampler: Sampler, position: int) -> Verdict:
    """Walk the draft tree with the target's own choices.

    Args:
        rows: (1 + n_draft, n_vocab); row 0 follows the committed text, row 1 + i follows draft node i.
        draft: the guessed tree.
        sampler: draws and counts; told of every token in the verdict.
        position: absolute position of the first token to be drawn.
    """
    children: dict[tuple[int, int], int] = {}
    for index, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        children.setdefault((parent, token), index)
    tokens: list[int] = []
    path: list[int] = []
    logprobs: list[TokenLogprobs] = []
    n_top = sampler.params.logprobs
    node = ROOT
    while True:
        row = rows[node + 1]
        token = sampler.sample(row, position + len(tokens))
        sampler.accept(token)
        tokens.append(token)
        if n_top is not None:
            logprobs.append(logprobs_of(row, token, n_top))
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(tokens), tuple(path), tuple(logprobs))
        path.append(child)
        node = child
