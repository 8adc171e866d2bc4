"""Answers on an event loop; a cancelled task ends its answer. `python examples/async_answers.py [MODEL]`."""

import asyncio
import sys

from edgespec import Engine


async def main() -> None:
    """Stream one answer, and make two at once."""
    with Engine.open(sys.argv[1] if sys.argv[1:] else None, n_sessions=2) as engine:
        async for chunk in engine.astream("Once upon a time", max_tokens=30):
            print(chunk.text, end="", flush=True)
        both = await asyncio.gather(*(engine.achat(f"What is {n} + {n}?", max_tokens=20) for n in (1, 2)))
        print("", *(answer.text for answer in both), sep="\n")


asyncio.run(main())
