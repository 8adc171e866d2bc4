"""Several turns; only what is new is evaluated. `python examples/chat.py [MODEL]`."""

import sys

from edgespec import Chat, Engine, Limits

with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    chat = Chat(engine, system="You are brief.", limits=Limits(max_tokens=60))
    for said in ("Write a Python function that adds two numbers.", "Now the same function with type hints."):
        turn = chat.ask(said)
        print(f">>> {said}\n" + "".join(chunk.text for chunk in turn))
        print(f"{turn.result.usage.cached_tokens} of {turn.result.usage.prompt_tokens} prompt tokens were cached")
