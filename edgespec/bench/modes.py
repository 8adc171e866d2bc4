"""The ways of decoding that are compared, and the order in which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.errors import ConfigError
from edgespec.interfaces import Drafter

PLAIN = "plain"
PLAIN_AGAIN = "plain2"
"""A second plain arm: its ratio to the first shows the noise of the machine."""
ORACLE = "oracle"
"""Drafts what plain decoding wrote, as long as the controller wants: the ceiling of any drafter."""
_FIXED = "fixed"
_MAX_FIXED = 63


@dataclass(frozen=True, slots=True)
class Mode:
    """One arm of the comparison: a drafter's name and, where lengths are fixed, how many tokens it always guesses."""

    name: str
    drafter: str
    fixed_draft: int | None = None
    make: Callable[[], Drafter] | None = None
    """Makes a drafter of the caller's own for every run, in place of `drafter`."""

    @property
    def knows_the_text(self) -> bool:
        """Whether it needs the answer before it is written."""
        return self.drafter == ORACLE and self.make is None


def parse_modes(text: str, drafters: Sequence[str]) -> tuple[Mode, ...]:
    """Modes from a comma-separated list, `plain` first and the second plain arm last, whether named or not.

    Raises:
        ConfigError: a name is no mode; the choices are named.
    """
    modes = [Mode(PLAIN, "none")]
    for raw in text.split(","):
        name = raw.strip()
        if name in {"", PLAIN, PLAIN_AGAIN, "none"}:
            continue
        mode = _mode(name, drafters)
        if mode not in modes:
            modes.append(mode)
    return (*modes, Mode(PLAIN_AGAIN, "none"))


def _mode(name: str, drafters: Sequence[str]) -> Mode:
    known = (*drafters, ORACLE)
    if name in known:
        return Mode(name, name)
    drafter, _, number = name.rpartition("-")
    fits = number.isascii() and number.isdigit() and 1 <= int(number) <= _MAX_FIXED
    if fits and drafter in {_FIXED, *known} - {"none"}:
        return Mode(f"{drafter}-{int(number)}", "auto" if drafter == _FIXED else drafter, int(number))
    names = ", ".join((PLAIN, *(d for d in known if d != "none")))
    raise ConfigError(f"unknown mode {name!r}: choose from {names}, fixed-N, NAME-N (N from 1 to {_MAX_FIXED})")


def orders(n: int) -> list[tuple[int, ...]]:
    """Orders of `n` arms in which each arm is equally often at each place and equally often after each other one.

    A Williams design: one Latin square for an even number of arms, two for an odd one.
    """
    first = [0]
    low, high = 1, n - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low, high = low + 1, high - 1
    square = [tuple((arm + shift) % n for arm in first) for shift in range(n)]
    return square if n % 2 == 0 else [order for pair in square for order in (pair, pair[::-1])]
