"""Fits the next-hidden predictor to generated text, for so many seconds, and says how often it is right."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edgespec.train import measure
from edgespec.train.data import MATCHED_WEIGHT, Text
from edgespec.train.model import Frame, NextHidden

_SOFT, _HARD, _STATES = 0.7, 0.3, 0.1
_STEP_WEIGHT = 0.8
_ON_COURSE = 0.7
"""Share of a later step's weight that it has only where the steps before were right: there alone it is ever asked."""
_RATE, _DECAY, _BATCH = 1.5e-3, 0.02, 256
_AVERAGE = 0.995
_CHECKS = 8
_MOST_MEASURED = 8000
_PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model, and what it is worth on held-out text."""

    model: NextHidden
    places: npt.NDArray[np.int64]
    right: measure.Right
    temperatures: tuple[float, ...]
    """By place, what logits are divided by so that the likeliest token's probability is how often it is right."""
    n_steps: int


class Batches:
    """Rows of the text as tensors in the model's terms."""

    def __init__(self, text: Text, fixed: Frame, ids: npt.NDArray[np.int64]) -> None:
        self._text, self._fixed = text, fixed
        most = int(max(text.top.max(), text.tokens.max(), ids.max())) + 1
        self.numbers = np.full(most, len(ids), np.int64)
        self.numbers[ids] = np.arange(len(ids))
        self._n_rows = len(ids)

    def states(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Standardised states."""
        plain = self._text.hidden[rows].astype(np.float32)
        return torch.from_numpy((plain - self._fixed.mean) / self._fixed.deviation)

    def ids(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """The tokens, as ids of the graph."""
        return torch.from_numpy(self.numbers[self._text.tokens[rows]])

    def likely(self, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The target's likeliest tokens and their probabilities among those of the vocabulary; 0 for all others."""
        numbers = self.numbers[self._text.top[rows]]
        shares = np.exp(self._text.logprobs[rows].astype(np.float32)) * (numbers < self._n_rows)
        return torch.from_numpy(numbers), torch.from_numpy(shares / np.maximum(shares.sum(1, keepdims=True), 1e-6))


def fit(
    text: Text,
    fixed: Frame,
    ids: npt.NDArray[np.int64],
    *,
    width: int,
    n_draft: int,
    seconds: float,
    seed: int,
    tell: Callable[[str], None] = lambda _line: None,
) -> Fitted:
    """Train for `seconds`; the state of the best check on held-out text is kept."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    batches = Batches(text, fixed, ids)
    starts = text.places(held_out=False)
    weights = np.where(text.matched[starts + 1], MATCHED_WEIGHT, 1.0)
    sample = rng.choice(starts, min(len(starts), 60_000), replace=False)
    model = NextHidden(fixed, width)
    model.start_at_ridge(
        batches.states(sample).numpy(), batches.ids(sample).numpy(), batches.states(sample + 1).numpy()
    )
    average = copy.deepcopy(model).eval()
    held = text.places(held_out=True)
    held = held if len(held) <= _MOST_MEASURED else np.sort(rng.choice(held, _MOST_MEASURED, replace=False))
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, weight_decay=_DECAY, betas=(0.9, 0.98))
    began_s = time.monotonic()
    n_steps = n_worse = 0
    next_check = 1 / _CHECKS
    best, best_state = _worth(judge(average, text, batches, held, n_draft)[0]), copy.deepcopy(average.state_dict())
    tell(f"at the ridge solution: {best:.3f} tokens a draft right on held-out text")
    cycle = np.zeros(0, np.int64)
    while True:
        share = (time.monotonic() - began_s) / seconds
        if share >= next_check or share >= 1:
            worth = _worth(judge(average, text, batches, held, n_draft)[0])
            share = (time.monotonic() - began_s) / seconds
            next_check = share + 1 / _CHECKS
            n_worse = 0 if worth > best else n_worse + 1
            tell(f"step {n_steps}, {share:.0%} of the time: {worth:.3f} tokens a draft right on held-out text")
            if worth > best:
                best, best_state = worth, copy.deepcopy(average.state_dict())
            if share >= 1 or n_worse >= _PATIENCE:
                break
        if len(cycle) < _BATCH:
            cycle = rng.permutation(starts[rng.random(len(starts)) < weights])
        rows, cycle = cycle[:_BATCH], cycle[_BATCH:]
        for group in optimizer.param_groups:
            group["lr"] = (
                _RATE * min(1.0, (n_steps + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * min(1, share))))
            )
        optimizer.zero_grad(set_to_none=True)
        _loss(model, text, batches, rows, n_draft).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        n_steps += 1
        keep = min(_AVERAGE, n_steps / (n_steps + 10))
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 1 - keep)
    average.load_state_dict(best_state)
    right, logits = judge(average, text, batches, held, n_draft)
    return Fitted(average, held, right, _calibrate(right, logits), n_steps)


def _loss(model: NextHidden, text: Text, batches: Batches, rows: npt.NDArray[np.int64], n_draft: int) -> Tensor:
    state = batches.states(rows)
    total, on_course = torch.zeros(()), torch.ones(len(rows))
    for step in range(n_draft):
        alive = np.flatnonzero(text.n_after[rows] > step)
        if not len(alive):
            break
        if len(alive) < len(rows):
            rows, keep = rows[alive], torch.from_numpy(alive)
            state, on_course = state[keep], on_course[keep]
        state = model(state, batches.ids(rows + step))
        logits = model.logits(state)
        ids, shares = batches.likely(rows + step + 1)
        hard = batches.ids(rows + step + 1)
        spread = functional.log_softmax(logits, 1)
        known = (hard < len(model.bias) - 1).float()
        soft_loss = -(spread.gather(1, ids) * shares).sum(1)
        hard_loss = -spread.gather(1, hard[:, None])[:, 0] * known
        state_loss = functional.smooth_l1_loss(state, batches.states(rows + step + 1), reduction="none").mean(1)
        weight = on_course * _ON_COURSE + (1 - _ON_COURSE)
        losses = _SOFT * soft_loss + _HARD * hard_loss + 10 * _STATES * state_loss
        total = total + _STEP_WEIGHT**step * (weight * losses).sum() / _BATCH
        on_course = on_course * (logits.argmax(1) == hard).float()
    return total


@torch.no_grad()  # type: ignore[untyped-decorator]  # untyped where torch is not installed
def judge(
    model: NextHidden, text: Text, batches: Batches, places: npt.NDArray[np.int64], n_draft: int
) -> tuple[measure.Right, list[Tensor]]:
    """For each place and step whether the draft is right there, and the logits of the steps.

    While a draft is right its tokens are the text's: the text's are fed.
    """
    right = np.zeros((len(places), n_draft), np.bool_)
    kept: list[Tensor] = []
    states = batches.states(places)
    for step in range(n_draft):
        rows = np.minimum(places + step, len(text.tokens) - 1)
        behind = np.minimum(rows + 1, len(text.tokens) - 1)
        states = model(states, batches.ids(rows))
        best = []
        probes = []
        for part in states.split(1024):
            logits = model.logits(part)
            top = logits.topk(64, 1)
            best.append(top.indices[:, 0])
            probes.append(top.values)
        kept.append(torch.cat(probes))
        wanted = batches.ids(behind).numpy()
        right[:, step] = (torch.cat(best).numpy() == wanted) & (text.n_after[places] > step)
    return right, kept


def _worth(right: measure.Right) -> float:
    """Tokens of a draft that are right, on average."""
    return float(np.cumprod(right, axis=1).sum(1).mean())


def _calibrate(right: measure.Right, logits: list[Tensor]) -> tuple[float, ...]:
    """By place the temperature at which the best token's probability predicts best whether it is right."""
    found = []
    reached = np.ones(len(right), np.bool_)
    for step, its in enumerate(logits):
        hit = torch.from_numpy(right[reached, step].astype(np.float32))
        part = its[torch.from_numpy(reached)]
        costs = []
        for temperature in (grid := np.geomspace(0.5, 4, 40)):
            claim = (part / float(temperature)).softmax(1)[:, 0].clamp(1e-4, 1 - 1e-4)
            costs.append(float(functional.binary_cross_entropy(claim, hit)) if len(hit) else 0.0)
        found.append(float(grid[int(np.argmin(costs))]))
        reached &= right[:, step]
    return tuple(found)
