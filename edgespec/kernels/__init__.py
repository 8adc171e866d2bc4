"""Kernels of our own that make verify passes of 2 to 16 rows cheap, in place of ggml's for the same blocks.

Small C sources (`c/`), compiled once for this machine by its own compiler, tried in a child process, and loaded in
front of ggml's CPU library, which then calls them. Results are ggml's own, bit for bit: that is tested at every load,
and whatever is missing or differs leaves the stock kernels in force, with the reason as text.

Source: docs/cheap-rows.md; ggml-cpu/repack.cpp of ggml 0.25.3.
"""

from __future__ import annotations

from edgespec.kernels.compiled import HOW, Built, build, find_built, library_folder, set_for, types_for
from edgespec.kernels.load import Status, leave_off, loading, n_shares, named, status

__all__ = [
    "HOW",
    "Built",
    "Status",
    "build",
    "find_built",
    "leave_off",
    "library_folder",
    "loading",
    "n_shares",
    "named",
    "set_for",
    "status",
    "types_for",
]
