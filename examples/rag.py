"""A question about a passage: what is copied out of it is drafted from it. `python examples/rag.py [MODEL]`."""

import sys

from edgespec import Engine

PASSAGE = (
    "The Pont de Normandie is a cable-stayed road bridge that spans the river Seine, linking Le Havre to Honfleur in "
    "Normandy. Its total length is 2,143.21 metres, of which 856 metres lie between the two piers."
)
with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    said = f"{PASSAGE}\n\nRepeat the sentence of this passage that says how long the bridge is."
    answer = engine.chat(said, temperature=0.0, max_tokens=60)
    print(answer.text)
    print(f"{answer.report.accepted} of {answer.usage.completion_tokens} tokens were drafted")
