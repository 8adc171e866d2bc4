"""Runs whole matrix products behind a kernel library, for tests: one JSON case a line in, one answer a line out.

`python kernels_worker.py LIBRARY FOLDER`. A case: n, n_columns, n_rows, n_threads, seed, on; of
attention: n_heads, n_cells, n_rows, n_threads, seed, on.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from random import Random

from edgespec.kernels.load import declare
from edgespec.kernels.operations import Ggml, attention_is_steady, differing_rows


def main() -> None:
    library, folder = map(Path, sys.argv[1:])
    kernels = declare(ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL))
    ggml = Ggml(folder)
    for line in sys.stdin:
        case = json.loads(line)
        assert kernels.edgespec_arm(case.pop("on")) is None
        before, random = kernels.edgespec_n_shares(), Random(case.pop("seed"))
        if "n_cells" in case:
            sys.stdout.write(json.dumps({"steady": attention_is_steady(ggml, random, **case)}) + "\n")
            sys.stdout.flush()
            continue
        wrong = differing_rows(ggml, random, **case)
        sys.stdout.write(json.dumps({"wrong": wrong, "n_shares": kernels.edgespec_n_shares() - before}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
