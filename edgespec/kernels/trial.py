"""`python -m edgespec.kernels.trial LIBRARY FOLDER`: everything that is known to tell right kernels from wrong ones.

In a process of its own: an illegal instruction, or a ggml whose structures are other ones, takes only that along. Exit
code 0, or 1 and the reason as the last line on stderr.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from random import Random

from edgespec.kernels.load import declare, text_of, version_problem
from edgespec.kernels.operations import (
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q6_K,
    Q8_0,
    Ggml,
    attention_is_steady,
    block_size,
    differing_rows,
)  # fmt: skip

_N_CASES = 3000
_SEED = 20


def trial(library: Path, folder: Path) -> str | None:
    """Try the kernels in this process; None, or what is wrong with them."""
    kernels = declare(ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL))
    ggml = Ggml(folder)
    problem = version_problem(folder)
    problem = problem or text_of(kernels.edgespec_self_test(_SEED, _N_CASES)) or text_of(kernels.edgespec_arm(True))
    if problem is not None:
        return problem
    # They say what they take: ggml computes the rest, whose rows may differ in the last bits from the row alone.
    takes = kernels.edgespec_takes
    random = Random(_SEED)
    for n_rows in range(1, 20):
        for n_blocks, n_columns, n_threads in ((3, 40, 1), (8, 200, 2), (2, 328, 3)):
            for kind in filter(lambda kind: takes(kind, 2), (Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K)):
                n, before = n_blocks * block_size(kind), kernels.edgespec_n_shares()
                wrong = differing_rows(ggml, random, n, n_columns, n_rows, n_threads, kind)
                where = f"in a product of {n} by {n_columns} of type {kind} on {n_threads} threads"
                if wrong and takes(kind, n_rows):
                    return f"rows {wrong} of {n_rows} differ {where}"
                n_shares = kernels.edgespec_n_shares() - before
                if not (_plausible(kind, n_threads, n_shares) if takes(kind, n_rows) else n_shares == 0):
                    return f"{n_rows} rows were {n_shares} shares {where}"
    for n_heads, n_cells, n_threads in ((3, 512, 2), (2, 768, 3)):
        if not attention_is_steady(ggml, random, n_heads, n_cells, 3, n_threads):
            return f"rows of attention over {n_cells} cells differ on {n_threads} threads"
    ggml.close()
    return None


def _plausible(kind: int, n_threads: int, n_shares: int) -> bool:
    """One share for each chunk of repacked columns, or thread: rows taken apart would be more, rows passed by none."""
    if kind != Q4_0:
        return n_shares == n_threads
    return 1 <= n_shares <= (4 * n_threads if n_threads > 1 else 1)


if __name__ == "__main__":
    found = trial(Path(sys.argv[1]), Path(sys.argv[2]))
    if found is not None:
        sys.exit(found)
