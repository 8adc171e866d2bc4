"""The next-hidden predictor, in torch: from a state and the token drawn from it to the state behind that token.

A linear map, started at the ridge solution, plus a gated MLP. States are kept standardised (mean 0, deviation 1 by
dimension), and the target's own output rows, which stay as they are, are scaled to match: they turn a state into logits
and are the embedding of a token too. Fed with its own prediction it rolls out.

Source: EAGLE (2401.15077), which predicts the next state; the measured map of this model's drafters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Array = npt.NDArray[Any]
_RIDGE = 30.0
"""Weight of the penalty, in rows of data."""
_RIDGE_ROWS = 60_000


@dataclass(frozen=True, slots=True)
class Frame:
    """What stays fixed: means and deviations of states, and the output rows of the small vocabulary."""

    mean: Array
    deviation: Array
    rows: Array
    """(n_rows + 1, n_hidden): of standardised states; the last one stands for all other tokens."""
    bias: Array
    """(n_rows + 1): logits of a state at its mean; the last is never drafted."""
    embedding_scale: float
    """Makes an output row an input of about deviation 1."""


def frame(hidden: Array, output: Array) -> Frame:
    """The frame for states (any sample of them) and the output rows of the vocabulary."""
    states = hidden.astype(np.float32)
    mean, deviation = states.mean(0), states.std(0) + 1e-3
    rows = output * deviation
    bias = output @ mean
    rows = np.concatenate((rows, rows.mean(0, keepdims=True))).astype(np.float32)
    bias = np.append(bias, -1e4).astype(np.float32)
    return Frame(mean, deviation, rows, bias, float(1 / rows[:-1].std()))


class NextHidden(nn.Module):  # type: ignore[misc]  # without torch installed its base is Any
    """See the module. `width` is that of the MLP."""

    rows: Tensor
    bias: Tensor

    def __init__(self, fixed: Frame, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        n = fixed.rows.shape[1]
        self.width, self.n_hidden, self.embedding_scale = width, n, fixed.embedding_scale
        self.register_buffer("rows", torch.from_numpy(fixed.rows))
        self.register_buffer("bias", torch.from_numpy(fixed.bias))
        self.inner = nn.Linear(2 * n, n + 2 * width)
        self.down = nn.Linear(width, n, bias=False)
        self.drop = nn.Dropout(dropout)
        nn.init.normal_(self.inner.weight, std=0.5 / (2 * n) ** 0.5)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.down.weight)

    def start_at_ridge(self, states: Array, ids: Array, following: Array) -> None:
        """Put the linear map at the ridge solution for (state, token) to the state behind it."""
        x = torch.from_numpy(states[:_RIDGE_ROWS].astype(np.float32))
        e = self.embed(torch.from_numpy(ids[:_RIDGE_ROWS]))
        x = torch.cat((x, e, torch.ones(len(x), 1)), 1)
        y = torch.from_numpy(following[:_RIDGE_ROWS].astype(np.float32))
        square = x.T @ x + _RIDGE * torch.eye(x.shape[1])
        solved = torch.linalg.solve(square, x.T @ y)
        with torch.no_grad():
            self.inner.weight[: self.n_hidden] = solved[:-1].T
            self.inner.bias[: self.n_hidden] = solved[-1]

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs for ids of the graph's vocabulary."""
        return self.rows[ids] * self.embedding_scale

    def forward(self, state: Tensor, ids: Tensor) -> Tensor:
        """The standardised state behind the token."""
        inner = self.inner(torch.cat((state, self.embed(ids)), 1))
        linear, gate, up = inner.split((self.n_hidden, self.width, self.width), 1)
        return linear + self.down(self.drop(nn.functional.silu(gate) * up))

    def logits(self, state: Tensor) -> Tensor:
        """Of the small vocabulary, in float32."""
        return nn.functional.linear(state, self.rows) + self.bias
