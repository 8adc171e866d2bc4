"""JSON extraction under a schema: plain constrained decoding against drafting, interleaved, on a real model.

    python scripts/bench_json.py MODEL [--rounds N] [--threads N]

Prints tokens a second of each way, its ratio to plain decoding by the clock and by processor time (which on one thread
tells the work also where other programs are in the way), and how many texts differed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from edgespec import Constraint, Engine, EngineConfig, Limits, Sampling
from edgespec.interfaces import Message

PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "year_of_birth": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "place_of_birth": {"type": "string", "maxLength": 30},
        "occupation": {"type": "string", "maxLength": 40},
        "is_alive": {"type": "boolean"},
    },
    "required": ["full_name", "year_of_birth", "place_of_birth", "occupation", "is_alive"],
}
ORDER = {
    "type": "object",
    "properties": {
        "order_number": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "customer_name": {"type": "string", "maxLength": 30},
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "product_name": {"type": "string", "maxLength": 25},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                    "currency": {"enum": ["EUR", "USD", "GBP"]},
                },
                "required": ["product_name", "quantity", "currency"],
            },
        },
        "delivery_status": {"enum": ["shipped", "pending", "delivered"]},
    },
    "required": ["order_number", "customer_name", "items", "delivery_status"],
}
TASKS = (
    (PERSON, "Ada Lovelace, born in London in 1815, was a mathematician and writer. She died in 1852."),
    (PERSON, "Born in Ulm in 1879, the physicist Albert Einstein worked in Bern and Princeton until his death."),
    (ORDER, "Order AB-1234 by Maria Schmidt: 3 garden chairs and 1 round table, paid in EUR, shipped yesterday."),
    (ORDER, "Tom Baker bought 2 lamps and 12 light bulbs for USD; order XK-9001 is still pending."),
)
WAYS = ("none", "ngram", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu_s: dict[str, list[float]] = {way: [] for way in WAYS}
    per_round: dict[str, list[float]] = {way: [] for way in WAYS}
    n_different = 0
    with Engine.open(args.model, EngineConfig(n_ctx=1024, threads=args.threads, threads_batch=args.threads)) as engine:
        for i in range(args.rounds + 1):  # the first warms up
            for schema, text in TASKS:
                prompt = engine.prompt(engine.render([Message("user", f"Extract the facts as JSON.\n\n{text}")]))
                constraint = Constraint.json_schema(schema)
                answers = set()
                for way in (*WAYS[i % 3 :], *WAYS[: i % 3]):
                    stream = engine.stream(prompt, Sampling(), Limits(300), drafter=way, constraint=constraint)
                    next(stream)  # the prompt's pass
                    began_s = time.process_time()
                    for _ in stream:
                        pass
                    spent_s = time.process_time() - began_s
                    result = stream.result
                    answers.add(result.tokens)
                    if i:
                        cpu_s[way].append(spent_s)
                        rates[way].append(result.report.tok_s or 0.0)
                        per_round[way].append(result.report.tokens_per_round or 0.0)
                    elif way == "auto":
                        print(f"{len(result.tokens)} tokens, {result.finish_reason}: {result.text}")
                n_different += len(answers) - 1
    plain = rates["none"]
    summary: dict[str, object] = {"different_texts": n_different}
    for way in WAYS:
        ratios = [rate / base for rate, base in zip(rates[way], plain, strict=True)]
        summary[way] = {
            "tok_s": round(statistics.median(rates[way]), 1),
            "ratio": round(statistics.geometric_mean(ratios), 3),
            "cpu_ratio": round(sum(cpu_s["none"]) / sum(cpu_s[way]), 3),
            "ratios": [round(ratio, 2) for ratio in ratios],
            "tokens_per_round": round(statistics.mean(per_round[way]), 2),
        }
    for way in WAYS:
        print(way, summary[way])
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
