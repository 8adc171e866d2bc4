"""ggml's thread pools: made with masks, attached to a context, freed. The binding of llama.cpp lacks them.

With OpenMP a pool carries the masks only, and the team belongs to the thread that decodes; without it the pool owns its
worker threads, and a context without one would make and join new threads at every pass. Both builds want the pool made
on the thread that decodes, and never more threads in a pass than the pool has: ggml does not check.
Source: ggml/src/ggml-cpu/ggml-cpu.c (ggml_threadpool_new_impl, ggml_graph_compute), as vendored in llama-cpp-python
0.3.36.
"""

from __future__ import annotations

import ctypes

from edgespec.conditions import Team
from edgespec.errors import DeviceError
from edgespec.target import lib

N_CPUS_MAX = 512
"""GGML_MAX_N_THREADS: threads of a pool, and core ids of a mask."""


class _Params(ctypes.Structure):
    """`struct ggml_threadpool_params` of ggml.h."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * N_CPUS_MAX),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class Pools:
    """The pools of one context: one for single rows and one for wider passes, or one for both."""

    def __init__(self, ctx: int, *, poll: int = 0, strict: bool = False) -> None:
        """`poll`: 0..100, how long idle workers spin before they sleep. `strict`: each thread keeps to one core.

        Not strict by default: within the mask the system may then move a thread away from a core that it shares.
        """
        self._ctx = ctypes.c_void_p(ctx)
        self._poll = poll
        self._strict = strict
        self._made: dict[tuple[int, tuple[int, ...]], int] = {}
        self._attached: tuple[int, int] | None = None
        self.n_threads = 0
        """Most threads of a pass; 0: no pool is attached, and llama.cpp uses as many as it is told."""

    def attach(self, n_threads: int, cpus: tuple[int, ...], cpus_wide: tuple[int, ...]) -> str | None:
        """Attach pools of `n_threads`; why that was not possible. Call it on the thread that decodes.

        Args:
            n_threads: most threads of any pass, 1..512.
            cpus: cores for passes of one row; empty: no mask.
            cpus_wide: cores for wider passes; empty: as `cpus`.
        """
        n_threads = min(n_threads, N_CPUS_MAX)
        try:
            pair = self._pool(n_threads, cpus), self._pool(n_threads, cpus_wide or cpus)
            if pair != self._attached:
                attach = lib.symbol("llama_attach_threadpool", None, (ctypes.c_void_p,) * 3)
                # A second pool that is the first would be paused and resumed at every change of width.
                attach(self._ctx, pair[0], pair[1] if pair[1] != pair[0] else None)
                self._attached = pair
                self.n_threads = n_threads
        except DeviceError as error:
            return f"this build of llama.cpp takes no thread pool ({error}): the system alone places its threads"
        self._free_all_but(pair)
        return None

    def free(self) -> None:
        """Detach and free. Before the context is freed."""
        if self._attached is not None:
            lib.symbol("llama_detach_threadpool", None, (ctypes.c_void_p,))(self._ctx)
            self._attached = None
            self.n_threads = 0
        self._free_all_but(())

    def _pool(self, n_threads: int, cpus: tuple[int, ...]) -> int:
        key = (n_threads, cpus)
        if key not in self._made:
            params = _Params()
            lib.symbol("ggml_threadpool_params_init", None, (ctypes.POINTER(_Params), ctypes.c_int))(params, n_threads)
            for cpu in range(N_CPUS_MAX):
                params.cpumask[cpu] = cpu in cpus
            params.poll = self._poll
            params.strict_cpu = self._strict
            pool = lib.symbol("ggml_threadpool_new", ctypes.c_void_p, (ctypes.POINTER(_Params),))(params)
            if not pool:
                raise DeviceError("ggml made no pool")
            self._made[key] = int(pool)
        return self._made[key]

    def _free_all_but(self, kept: tuple[int, ...]) -> None:
        for key, pool in list(self._made.items()):
            if pool not in kept:
                lib.symbol("ggml_threadpool_free", None, (ctypes.c_void_p,))(pool)
                del self._made[key]


def uses_openmp() -> bool:
    """Whether this build's teams are OpenMP's."""
    info = lib.symbol("llama_print_system_info", ctypes.c_char_p, ())() or b""
    return b"OPENMP = 1" in info


def largest(team: Team) -> int:
    """Threads that a pool for this team needs."""
    return max(team.one, team.wide, 1)
