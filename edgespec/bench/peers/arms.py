"""Who takes part: every configuration, the worker it runs in, and which one is its own plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.bench.modes import PLAIN, PLAIN_AGAIN
from edgespec.errors import ConfigError

AUTO = "auto"
PLAIN_STOCK, AUTO_STOCK = "plain, ggml rows", "auto, ggml rows"
_MODULES = "edgespec.bench.peers."


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration. Arms with the same `module` and `settings` share a process."""

    name: str
    module: str
    plain: str
    """The arm that is this program without drafting."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """For the worker, beside model, context and threads."""
    request: Mapping[str, object] = field(default_factory=dict)
    """For every question, beside the prompt and the budget."""

    @property
    def ours(self) -> bool:
        """Whether it is edgespec."""
        return self.module == "ours"

    @property
    def drafts(self) -> bool:
        """Whether it is not a plain one."""
        return self.plain != self.name and self.name != PLAIN_AGAIN

    def command(self, server_python: Path | None) -> list[str]:
        """What to start; llama-server's worker runs with the Python that has it.

        Raises:
            ConfigError: it needs that Python, and there is none.
        """
        if self.module != "llama_server":
            return [sys.executable, "-m", _MODULES + self.module]
        if server_python is None:
            raise ConfigError("xllamacpp is not installed for this comparison")
        return [str(server_python), "-m", _MODULES + self.module]


def _ours(name: str, drafter: str) -> Arm:
    return Arm(name, "ours", PLAIN, request={"drafter": drafter})


def _lookup(name: str, n: int) -> Arm:
    return Arm(name, "lookup", "lcpp plain", {"lookup": n})


def _server(name: str, kind: str, **options: int) -> Arm:
    return Arm(name, "llama_server", "server plain", {"type": kind, "options": options})


_STOCK = {"kernels": "off"}
OURS = (
    _ours(PLAIN, "none"),
    _ours(AUTO, "auto"),
    _ours(PLAIN_AGAIN, "none"),
    # The same with ggml's own kernels for passes of several rows.
    Arm(PLAIN_STOCK, "ours", PLAIN_STOCK, _STOCK, {"drafter": "none"}),
    Arm(AUTO_STOCK, "ours", PLAIN_STOCK, _STOCK, {"drafter": "auto"}),
)
PEERS = (
    Arm("bare loop", "bare", "bare loop"),
    _lookup("lcpp plain", 0),
    _lookup("lcpp lookup 10", 10),
    _lookup("lcpp lookup 2", 2),  # what its authors advise without a GPU
    _server("server plain", "none"),
    _server("server simple", "ngram-simple"),
    _server("server simple 3/7", "ngram-simple", size_n=3, size_m=7),
    _server("server map-k", "ngram-map-k"),
    _server("server map-k 3/7", "ngram-map-k", size_n=3, size_m=7),
    _server("server mod", "ngram-mod"),
    _server("server mod 8/3/15", "ngram-mod", n_match=8, n_min=3, n_max=15),
    _server("server cache", "ngram-cache"),
)


def choose(names: str | None) -> tuple[Arm, ...]:
    """Our own arms and those peers whose names begin with one of `names`, comma-separated; None: all; "none": none.

    The plain arm of each goes with it.

    Raises:
        ConfigError: no peer has such a name.
    """
    if names is None:
        return (*OURS, *PEERS)
    if names == "none":
        return OURS
    wanted: set[str] = set()
    for raw in names.split(","):
        found = [arm for arm in PEERS if arm.name.startswith(raw.strip())]
        if not raw.strip() or not found:
            raise ConfigError(f"no peer is named {raw.strip()!r}: choose from {', '.join(arm.name for arm in PEERS)}")
        wanted |= {arm.name for arm in found} | {arm.plain for arm in found}
    return (*OURS, *(arm for arm in PEERS if arm.name in wanted))


def by_process(arms: Sequence[Arm]) -> list[list[Arm]]:
    """Arms grouped by the process they share."""
    found: list[list[Arm]] = []
    for arm in arms:
        for group in found:
            if (group[0].module, group[0].settings) == (arm.module, arm.settings):
                group.append(arm)
                break
        else:
            found.append([arm])
    return found
