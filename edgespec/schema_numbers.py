"""Numbers between bounds, as grammar expressions over decimal digits."""

from __future__ import annotations

import math

from edgespec.errors import ConstraintError
from edgespec.grammar_text import choice, literal

INTEGER = '"-"? ("0" | [1-9] [0-9]{0,15})'
NUMBER = f'{INTEGER} ("." [0-9]{{1,15}})? ([eE] [-+]? [0-9]{{1,2}})?'
_N_DIGITS = 15
"""Digits of numbers without an upper bound; more are not exact as a float."""
_FRACTION = '("." [0-9]{1,6})?'


def integers(least: int | None, most: int | None) -> str:
    """The integers from `least` to `most`, without leading zeros.

    Raises:
        ConstraintError: there is none.
    """
    ways = _signed(least, most, "")
    if not ways:
        raise ConstraintError(f"there is no integer from {least} to {most}")
    return choice(ways)


def numbers(least: float | None, most: float | None, *, above: bool, below: bool) -> str:
    """Numbers from `least` to `most`: the integers, and fractions between two integers that both are in the range.

    Args:
        least: lower bound, None for none.
        most: upper bound, None for none.
        above: whether `least` itself is left out.
        below: whether `most` itself is left out.

    Raises:
        ConstraintError: the range holds no integer.
    """
    lo = None if least is None else math.floor(least) + 1 if above else math.ceil(least)
    hi = None if most is None else math.ceil(most) - 1 if below else math.floor(most)
    ways = _signed(lo, hi, "")
    if hi is None or lo is None or lo < hi:
        from_zero = _signed(lo, None if hi is None else hi - 1, _FRACTION, negative=False)
        to_zero = _signed(None if lo is None else lo + 1, hi, _FRACTION, positive=False)
        ways = [*from_zero, *to_zero, *ways]
    if above and least == 0 and (most is None or most >= 1):
        ways.append('"0." [0-9]{0,5} [1-9]')
    if not ways:
        raise ConstraintError(f"the range from {least} to {most} holds no integer: widen it")
    return choice(ways)


def _signed(
    least: int | None, most: int | None, tail: str, *, negative: bool = True, positive: bool = True
) -> list[str]:
    """Ways to write the integers in a range, each followed by `tail`."""
    if least is not None and most is not None and least > most:
        return []
    ways = []
    if positive and (most is None or most >= 0):
        ways += [f"{way} {tail}".rstrip() for way in _unsigned(max(0, least or 0), most)]
    if negative and (least is None or least < 0):
        low = 1 if most is None or most >= 0 else -most
        ways += [f'"-" {way} {tail}'.rstrip() for way in _unsigned(low, None if least is None else -least)]
    return ways


def _unsigned(least: int, most: int | None) -> list[str]:
    if most is None:
        most = 10 ** max(_N_DIGITS, len(str(least)) + 1) - 1
    ways = []
    for n in range(len(str(least)), len(str(most)) + 1):
        low, high = max(least, 10 ** (n - 1) if n > 1 else 0), min(most, 10**n - 1)
        ways.append(_digits(str(low), str(high)))
    return ways


def _digits(low: str, high: str) -> str:
    """The numbers from `low` to `high`, which have the same number of digits."""
    n = len(low)
    if not n:
        return '""'
    if set(low) == {"0"} and set(high) == {"9"}:
        return "[0-9]" if n == 1 else f"[0-9]{{{n}}}"
    if low == high:
        return literal(low)
    first, last = int(low[0]), int(high[0])
    if first == last:
        return f"{literal(low[0])} {_digits(low[1:], high[1:])}"
    ways = []
    if n > 1 and low[1:].strip("0"):
        ways.append(f"{literal(low[0])} {_digits(low[1:], '9' * (n - 1))}")
        first += 1
    top = []
    if n > 1 and high[1:].strip("9"):
        top.append(f"{literal(high[0])} {_digits('0' * (n - 1), high[1:])}")
        last -= 1
    if first <= last:
        digit = f"[{first}-{last}]" if first < last else literal(str(first))
        ways.append(f"{digit} {_digits('0' * (n - 1), '9' * (n - 1))}" if n > 1 else digit)
    return choice([*ways, *top])
