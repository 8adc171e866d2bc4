"""What drafters and targets may offer beyond their contracts in `interfaces`: hidden states, being made for a target.

No logic lives here. Who does not offer something is never asked for it, and nobody pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgespec.interfaces import Drafter, Target

Hidden = npt.NDArray[np.float32]
"""The target's state of one position after its final norm: (n_hidden,) float32. A view, as a row is."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a drafter that was made for certain targets is told of this one."""

    name: str
    n_vocab: int
    n_hidden: int
    """Length of the states that `HiddenTarget.hidden` gives; 0: it gives none."""
    model: str | None
    """sha256 that models of the same trained weights share, in whatever quantisation; None: not known."""
    tokenizer: Callable[[int], str]
    """sha256 over so many tokens of the tokenizer, from the first on."""


@runtime_checkable
class FittedDrafter(Drafter, Protocol):
    """A drafter that serves certain targets only."""

    def fit(self, target: TargetFacts) -> str | None:
        """Prepare to serve this target, before the first proposal; a line for the user, if there is one.

        Raises:
            DrafterError: it cannot.
        """
        ...


@runtime_checkable
class HiddenDrafter(Drafter, Protocol):
    """A drafter that may read the target's hidden states; one on a thread of its own is shown none."""

    @property
    def reads_hidden(self) -> bool:
        """Whether it does; asked once an answer."""
        ...

    def observe(self, context: Sequence[int], hidden: Hidden) -> None:
        """`hidden` is the state from which the newest token of `context` was drawn; a view, to be copied.

        Not every proposal is preceded by one: after a prompt, or where a pass served a prompt too, nothing is known.
        """
        ...


@runtime_checkable
class HiddenTarget(Target, Protocol):
    """A target that shows its states after the final norm."""

    n_hidden: int
    """Length of such a state; 0: it shows none after all."""

    def hidden(self, seq_id: int, row: int) -> Hidden | None:
        """The state behind a row of the last `eval`, where its plan asked for it; valid until the next `eval`.

        None where the pass was of a kind that has none, such as one that takes in a prompt.

        Raises:
            EvalError: it should be there and is not.
        """
        ...
