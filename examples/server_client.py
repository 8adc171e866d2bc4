"""OpenAI's client with `edgespec serve`. `python examples/server_client.py http://127.0.0.1:8080/v1`."""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none")
answer = client.chat.completions.create(
    model="default", messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=30
)
print(answer.choices[0].message.content)
print((answer.model_extra or {})["timings"]["draft_n_accepted"], "drafted tokens accepted")
