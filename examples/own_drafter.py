"""A drafter of your own: it guesses, the model decides. `python examples/own_drafter.py [MODEL]`."""

import sys
from collections.abc import Sequence

from edgespec import Draft, Engine


class Repeats:
    """Guesses that what followed the newest token last time follows again."""

    name = "repeats"

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """The tokens behind the latest earlier place of the newest one."""
        at = next((i for i in range(len(context) - 2, -1, -1) if context[i] == context[-1]), None)
        guess = tuple(context[at + 1 : at + 1 + limit]) if at is not None else ()
        n = len(guess)
        return Draft(guess, parents=tuple(range(-1, n - 1)), strength=(0,) * n, confidence=(0.5,) * n)

    def close(self) -> None:
        """Nothing to free."""


with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    answer = engine.chat("Repeat this ten times: one two three four five.", drafter=Repeats(), max_tokens=80)
    print(answer.text, answer.report.drafter, answer.report.accepted, answer.report.drafter_off_reason, sep="\n")
