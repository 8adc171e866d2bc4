"""Ask once, and see what drafting did. `python examples/ask.py [MODEL]`."""

import sys

from edgespec import Engine

with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    answer = engine.chat("What is the capital of France? Answer in one sentence.", max_tokens=40)
    print(answer.text)
    print(f"{answer.report.accepted} of {answer.report.drafted} drafted tokens accepted, {answer.report.tok_s} tok/s")
