"""Writes grammars in llama.cpp's notation (GBNF): literals, classes, repetitions, and rules with names of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from edgespec.core.gbnf import MAX_REPEAT
from edgespec.errors import ConstraintError

Ranges = Sequence[tuple[int, int]]
"""Code points, as ascending pairs of the first and the last."""

ANY: Ranges = ((0x01, 0xD7FF), (0xE000, 0x10FFFF))
"""All characters that UTF-8 can write, but for the null character."""
JSON_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0xA0, 0xD7FF), (0xE000, 0x10FFFF))
"""What stands for itself in a JSON string; control characters, quotation mark and backslash do not."""
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Rules:
    """The rules of one grammar; equal ones are kept once."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def add(self, hint: str, body: str) -> str:
        """The name of a rule with this body; like `hint` where it is new."""
        known = self._names.get(body)
        if known is not None:
            return known
        name = self.reserve(hint)
        self.define(name, body)
        self._names[body] = name
        return name

    def reserve(self, hint: str) -> str:
        """A name for a rule whose body comes later: it may name itself."""
        stem = re.sub(r"[^A-Za-z0-9]+", "-", hint).strip("-")[:40] or "rule"
        name, n = stem, 1
        while name in self._bodies or name == "root":
            n += 1
            name = f"{stem}-{n}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._bodies[name] = body

    def text(self, root: str) -> str:
        """The grammar, beginning with `root`."""
        return "".join(f"{name} ::= {body}\n" for name, body in {"root": root, **self._bodies}.items())


def literal(text: str) -> str:
    """Exactly this text."""
    return '"' + "".join(_ESCAPED.get(c, c if c.isprintable() else _code(ord(c))) for c in text) + '"'


def char_class(ranges: Ranges) -> str:
    """One character of these."""
    return "[" + "".join(_code(lo) if lo == hi else f"{_code(lo)}-{_code(hi)}" for lo, hi in ranges) + "]"


def json_char(ranges: Ranges) -> str:
    """One character of these as it is written in a JSON string.

    Raises:
        ConstraintError: none of them can be written.
    """
    plain = intersect(ranges, JSON_PLAIN)
    ways = [char_class(plain)] if plain else []
    ways += [literal(written) for char, written in _ESCAPED.items() if intersect(ranges, [(ord(char), ord(char))])]
    if not ways:
        raise ConstraintError("only characters that cannot be written would fit")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def repeat(item: str, least: int, most: int | None) -> str:
    """`item`, a single name, literal or class, so many times. Beyond 2000 the upper bound becomes 2000: still right.

    Raises:
        ConstraintError: `least` is more than that, or more than `most`.
    """
    if least > MAX_REPEAT or (most is not None and least > most):
        raise ConstraintError(f"from {least} to {most} repetitions: at most {MAX_REPEAT}, and no less than the least")
    if most is not None:
        most = min(most, MAX_REPEAT)
    if most == 0:
        return '""'
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((least, most))
    return item + (sign if sign is not None else f"{{{least},{'' if most is None else most}}}")


def choice(ways: Iterable[str]) -> str:
    """One of these, each once, in parentheses where there are several."""
    unique = list(dict.fromkeys(ways))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"


def intersect(a: Ranges, b: Ranges) -> list[tuple[int, int]]:
    """The code points in both."""
    pairs = ((max(lo, low), min(hi, high)) for lo, hi in a for low, high in b)
    return sorted((lo, hi) for lo, hi in pairs if lo <= hi)


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The code points in any of these, joined where they touch."""
    joined: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if joined and lo <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def complement(ranges: Ranges) -> list[tuple[int, int]]:
    """The writable characters that are in none of these."""
    found, next_lo = [], 0
    for lo, hi in union(ranges):
        if next_lo < lo:
            found.append((next_lo, lo - 1))
        next_lo = hi + 1
    found.append((next_lo, 0x10FFFF))
    return intersect([pair for pair in found if pair[0] <= pair[1]], ANY)


def _code(point: int) -> str:
    char = chr(point)
    if char.isascii() and char.isalnum():
        return char
    return f"\\x{point:02X}" if point < 0x100 else f"\\u{point:04X}" if point < 0x10000 else f"\\U{point:08X}"
