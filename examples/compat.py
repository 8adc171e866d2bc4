"""A program for llama-cpp-python with another import. `python examples/compat.py MODEL`."""

import sys

from edgespec.compat import Llama  # instead of: from llama_cpp import Llama

llm = Llama(model_path=sys.argv[1], n_ctx=1024, n_gpu_layers=-1)
output = llm("Q: Name the planets in the solar system. A: ", max_tokens=32, stop=["Q:", "\n"], echo=True)
print(output["choices"][0]["text"])
print(*llm.notes, sep="\n")
llm.close()
