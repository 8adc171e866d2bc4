"""Damaged grammars through llama.cpp: `python tests/grammar_fuzz.py MODEL`; prints how many of them were accepted.

Run by a test in a process of its own, since llama.cpp ends the process where something slips through.
"""

from __future__ import annotations

import random
import sys

from edgespec.errors import ConstraintError
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions

WHOLE = (
    'root ::= "ab" [c-e]{2,3} (item | "x")* # end\nitem ::= "é" | [^"\\\\\\x00-\\x1F] item?',
    'root ::= a? b\na ::= "1"+\nb ::= "2" | a "3"',
    'root ::= "[" (v ("," v)*)? "]"\nv ::= "1" | root',
)
PARTS = ('"', "[", "]", "(", ")", "|", "*", "+", "?", "{2}", "{,}", "\n", "a", "root", " ::= ", "\\", ".", "", "", "")


def main() -> None:
    target = load(sys.argv[1], TargetOptions(n_ctx=64, n_threads=1))
    rng = random.Random(1)
    n_good = 0
    for _ in range(500):
        text = list(rng.choice(WHOLE))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 1)] = rng.choice(PARTS)
        try:
            guide = target.guide("".join(text))
        except ConstraintError as error:
            if "llama.cpp refused" in str(error):
                raise  # the check should have said so before
            continue
        n_good += 1
        for _ in range(12):
            may = [token for token in range(target.n_vocab) if guide.allows(token) and token not in target.eog]
            if not may:
                break
            guide.accept(rng.choice(may))
    print(n_good)  # noqa: T201 - the answer of this program


if __name__ == "__main__":
    main()
