"""Stop an answer from another thread and keep what there is. `python examples/cancel.py [MODEL]`."""

import sys
import threading

from edgespec import Engine

with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    threading.Timer(0.5, engine.cancel).start()
    answer = engine.generate("Once upon a time", ignore_eog=True)
    print(answer.text)
    print(answer.finish_reason, "after", answer.usage.completion_tokens, "tokens")
