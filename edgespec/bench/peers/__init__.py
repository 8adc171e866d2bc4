"""edgespec beside other programs that decode the same model: `scripts/bench_peers.py`.

Each peer lives in a process of its own. What runs there is in ours, bare, lookup and llama_server; they speak `wire`.
"""
