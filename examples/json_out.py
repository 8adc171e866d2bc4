"""An answer that is valid JSON; its fixed parts are drafted. `python examples/json_out.py [MODEL]`."""

import json
import sys

from edgespec import Engine

form = {"properties": {"name": {"type": "string"}, "year": {"type": "integer"}}, "required": ["name", "year"]}
with Engine.open(sys.argv[1] if sys.argv[1:] else None) as engine:
    answer = engine.chat("Ada was born in 1815. Give name and year.", json_schema=form, max_tokens=60)
    print(json.loads(answer.text))
