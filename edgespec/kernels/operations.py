"""Whole matrix products through ggml's own graph, threads and repacked weights: what the kernels are compared in.

Knows nothing of the kernels. Source: ggml.h, ggml-alloc.h, ggml-backend.h of ggml 0.25.3.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

_F32, _F16 = 0, 1
HEAD = 64
"""Numbers of a head."""
_BLOCKS = {
    2: (32, 1, 16, 0), 3: (32, 2, 16, 0), 6: (32, 1, 20, 0), 8: (32, 1, 32, 0), 12: (256, 2, 140, 0),
    14: (256, 0, 208, 1),
}  # fmt: skip
"""By type of weights: values of a block; scales in half precision, the bytes that follow them, scales after these."""
Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K = _BLOCKS
REPACKED = frozenset({Q4_0, Q4_K})
"""Types that ggml lays out anew on x86."""
_MEMORY = 1 << 22  # of tensors' descriptions, not of their data


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """ggml's functions with the prototypes they need here; loads the libraries that are not loaded yet."""

    def __init__(self, folder: Path) -> None:
        self._base = ctypes.CDLL(str(folder / "libggml-base.so.0"))
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so.0"))
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        for library, name, restype, argtypes in (
            (self._base, "ggml_init", pointer, [_InitParams]),
            (self._base, "ggml_free", None, [pointer]),
            (self._base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, number, number]),
            (self._base, "ggml_new_tensor_3d", pointer, [pointer, ctypes.c_int, number, number, number]),
            (self._base, "ggml_mul_mat", pointer, [pointer, pointer, pointer]),
            (self._base, "ggml_flash_attn_ext", pointer, [*[pointer] * 5, *[ctypes.c_float] * 3]),
            (self._base, "ggml_new_graph", pointer, [pointer]),
            (self._base, "ggml_build_forward_expand", None, [pointer, pointer]),
            (self._base, "ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
            (self._base, "ggml_backend_alloc_ctx_tensors_from_buft", pointer, [pointer, pointer]),
            (self._base, "ggml_backend_buffer_free", None, [pointer]),
            (self._base, "ggml_backend_tensor_set", None, [pointer, pointer, size, size]),
            (self._base, "ggml_backend_tensor_get", None, [pointer, pointer, size, size]),
            (self._base, "ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
            (self._base, "ggml_backend_free", None, [pointer]),
            (self._cpu, "ggml_backend_cpu_init", pointer, []),
            (self._cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
            (self._cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", pointer, []),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = restype, argtypes
        self._silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(lambda *_: None)
        self._base.ggml_log_set(self._silent, None)
        self.backend = self._cpu.ggml_backend_cpu_init()

    def close(self) -> None:
        """Free the backend; ggml writes to stderr again."""
        self._base.ggml_backend_free(self.backend)
        self._base.ggml_log_set(None, None)

    def context(self) -> Any:
        """A place for tensors without data."""
        return self._base.ggml_init(_InitParams(_MEMORY, None, True))

    def tensor(self, context: Any, kind: int, n: int, n_rows: int) -> Any:
        """A matrix of n_rows rows of n numbers."""
        return self._base.ggml_new_tensor_2d(context, kind, n, n_rows)

    def put(self, tensor: Any, data: bytes) -> None:
        """Fill a tensor."""
        self._base.ggml_backend_tensor_set(tensor, data, 0, len(data))

    def product(self, weights: Any, rows: bytes, n: int, n_columns: int, n_threads: int) -> bytes:
        """Rows of n floats times the weights, on so many threads; rows of `n_columns` floats."""
        n_rows = len(rows) // (4 * n)
        context = self.context()
        by = self.tensor(context, _F32, n, n_rows)
        out = self._base.ggml_mul_mat(context, weights, by)
        return self._computed(context, out, {by: rows}, 4 * n_rows * n_columns, n_threads)

    def attention(self, queries: bytes, keys: bytes, values: bytes, n_heads: int, n_threads: int) -> bytes:
        """Flash attention on so many threads: rows of `n_heads` heads of 64 floats, over cells of as many heads.

        `queries` are float32, head by head the rows; `keys` and `values` half precision, head by head the cells.
        """
        size = n_heads * HEAD
        n_rows, n_cells = len(queries) // (4 * size), len(keys) // (2 * size)
        context = self.context()
        q = self._base.ggml_new_tensor_3d(context, _F32, HEAD, n_rows, n_heads)
        k, v = (self._base.ggml_new_tensor_3d(context, _F16, HEAD, n_cells, n_heads) for _ in range(2))
        out = self._base.ggml_flash_attn_ext(context, q, k, v, None, HEAD**-0.5, 0.0, 0.0)
        return self._computed(context, out, {q: queries, k: keys, v: values}, 4 * n_rows * size, n_threads)

    def _computed(self, context: Any, out: Any, data: Mapping[Any, bytes], n_bytes: int, n_threads: int) -> bytes:
        """The first bytes of `out`, computed from this data; frees the context."""
        graph = self._base.ggml_new_graph(context)
        self._base.ggml_build_forward_expand(graph, out)
        buffer = self._base.ggml_backend_alloc_ctx_tensors(context, self.backend)
        for tensor, content in data.items():
            self.put(tensor, content)
        self._cpu.ggml_backend_cpu_set_n_threads(self.backend, n_threads)
        failed = self._base.ggml_backend_graph_compute(self.backend, graph)
        result = ctypes.create_string_buffer(n_bytes)
        self._base.ggml_backend_tensor_get(out, result, 0, len(result))
        self._base.ggml_backend_buffer_free(buffer)
        self._base.ggml_free(context)
        if failed:
            raise RuntimeError(f"ggml_backend_graph_compute returns {failed}")
        return result.raw

    def weights(self, kind: int, data: bytes, n: int, n_columns: int) -> tuple[Any, Any, Any]:
        """Weights, repacked where ggml does so, others as they are; context, buffer and tensor, for `drop`."""
        context = self.context()
        tensor = self.tensor(context, kind, n, n_columns)
        if kind in REPACKED:
            repacked = self._cpu._Z35ggml_backend_cpu_repack_buffer_typev()
            buffer = self._base.ggml_backend_alloc_ctx_tensors_from_buft(context, repacked)
        else:
            buffer = self._base.ggml_backend_alloc_ctx_tensors(context, self.backend)
        self.put(tensor, data)
        return context, buffer, tensor

    def drop(self, context: Any, buffer: Any) -> None:
        """Free what `weights` made."""
        self._base.ggml_backend_buffer_free(buffer)
        self._base.ggml_free(context)


def block_size(kind: int) -> int:
    """Weights of this type that have a scale in common: rows are multiples of it."""
    return _BLOCKS[kind][0]


def random_weights(random: Random, kind: int, n: int, n_columns: int) -> bytes:
    """Random weights as they are in a file."""
    size, n_before, n_bytes, n_after = _BLOCKS[kind]

    def scales(n_scales: int) -> bytes:
        return struct.pack(f"<{n_scales}e", *(random.uniform(-0.1, 0.1) for _ in range(n_scales)))

    return b"".join(
        scales(n_before) + random.randbytes(n_bytes) + scales(n_after) for _ in range(n // size * n_columns)
    )


def differing_rows(
    ggml: Ggml, random: Random, n: int, n_columns: int, n_rows: int, n_threads: int, kind: int = Q4_0
) -> list[int]:
    """Rows of one pass that are not, bit for bit, what the row alone gives on one thread."""
    context, buffer, weights = ggml.weights(kind, random_weights(random, kind, n, n_columns), n, n_columns)
    # Every fifth 256 activations are zeros: blocks that have no scale.
    rows = [
        struct.pack(f"<{n}f", *(random.gauss(0.0, 1.0) if (i // 256 + r) % 5 < 4 else 0.0 for i in range(n)))
        for r in range(n_rows)
    ]
    together = ggml.product(weights, b"".join(rows), n, n_columns, n_threads)
    size = 4 * n_columns
    alone = [ggml.product(weights, row, n, n_columns, 1) for row in rows]
    ggml.drop(context, buffer)
    return [i for i, row in enumerate(alone) if together[i * size : (i + 1) * size] != row]


def attention_is_steady(ggml: Ggml, random: Random, n_heads: int, n_cells: int, n_rows: int, n_threads: int) -> bool:
    """Whether each row of attention, alone on so many threads or with the others, is what it is alone on one thread."""

    def numbers(n: int, form: str) -> list[bytes]:
        return [struct.pack(f"<{n}{form}", *(random.gauss(0.0, 1.0) for _ in range(n))) for _ in range(n_heads)]

    keys, values = (b"".join(numbers(n_cells * HEAD, "e")) for _ in range(2))
    heads, row = numbers(n_rows * HEAD, "f"), 4 * HEAD
    together = ggml.attention(b"".join(heads), keys, values, n_heads, n_threads)
    for i in range(n_rows):
        query = b"".join(head[i * row : (i + 1) * row] for head in heads)
        alone = ggml.attention(query, keys, values, n_heads, 1)
        if ggml.attention(query, keys, values, n_heads, n_threads) != alone:
            return False
        # Of the result the heads of a row lie side by side.
        if together[i * n_heads * row : (i + 1) * n_heads * row] != alone:
            return False
    return True
