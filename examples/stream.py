"""Show an answer while it is written. `python examples/stream.py [MODEL]`."""

import sys

from edgespec import Engine

with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    stream = engine.stream([{"role": "user", "content": "Count from one to ten."}], max_tokens=60)
    for chunk in stream:
        print(chunk.text, end="", flush=True)
    print(f"\n{stream.result.finish_reason}, {stream.result.report.tokens_per_round} tokens a pass")
