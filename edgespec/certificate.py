"""What `edgespec certify` measured: by how much logits move with width, threads, company and prompt chunks.

A JSON file in the cache, one for each model, llama.cpp build and machine. A deviation of 0 means equal bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgespec import paths
from edgespec.errors import ConfigError
from edgespec.state import state_file
from edgespec.target.options import KV_BYTES

Kind = Literal["width", "single", "wide", "prefill", "chunk", "company"]
"""What differs from the reference, which is one sequence, single rows, one thread, a prompt in chunks of `n_batch`:
rows of a pass; threads of single rows; threads of passes of eight rows; threads of the prompt; tokens of a prompt's
chunk; sequences in the batch, each with a cache of its own."""
DEFAULT_KV = "f16/f16"
"""Types of the KV cache where nothing else is asked for."""
_VERSION = 2
_MAX_BYTES = 2**24
_MAX_COUNT = 2**31 - 1
_MAX_WIDTH = 512
_Z = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A place where another token was the likeliest."""

    n_ctx: int
    """Cached tokens before it."""
    margin: float
    """Between the two likeliest tokens of the reference, in logits."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison with the reference."""

    kind: Kind
    kv: str
    """Types of the KV cache, "K/V"."""
    n: int
    """Rows, threads, tokens or sequences, by `kind`."""
    n_ctx: int
    """Tokens of context at which it began."""
    n_tokens: int
    """Rows of logits that were compared."""
    deviation: float
    """Largest difference of any logit; 0: equal bit for bit."""
    flips: tuple[Flip, ...] = ()

    def flips_per_10k(self) -> tuple[float, float, float]:
        """Flips in 10,000 tokens, and a 95 % interval (Wilson score)."""
        n, share = self.n_tokens, len(self.flips) / self.n_tokens
        middle = (share + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
        half = _Z / (1 + _Z * _Z / n) * math.sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
        return 1e4 * share, 1e4 * max(0.0, middle - half), 1e4 * min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Price:
    """Milliseconds of a pass with one KV type, at `n_ctx` tokens of context."""

    kv: str
    n_ctx: int
    one_thread_ms: float
    """A single row on one thread."""
    one_ms: float
    """A single row on all threads."""
    four_ms: float
    eight_ms: float
    usual_ms: float | None
    """One row and four with the default KV type and all threads, measured by turns with these; None: not known."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Everything that was measured, and on what."""

    fingerprint: str
    """The model."""
    build: str
    """Version of llama-cpp-python."""
    machine: str
    """The processor's name."""
    n_threads: int
    """Most threads of a pass that were tried."""
    n_ctx: int
    """Longest context that was reached."""
    quick: bool
    cells: tuple[Cell, ...]
    prices: tuple[Price, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """KV types that this model does not take, and why."""
    kernels: str | None = None
    """What edgespec's kernels for few rows were made for; None: ggml's own computed, with which fewer widths may be
    exact, and none that is not with ours."""

    @property
    def kv_types(self) -> tuple[str, ...]:
        """KV types that were measured, in the order of measuring."""
        return tuple(dict.fromkeys(cell.kv for cell in self.cells))

    def find(self, kind: Kind, kv: str, n_ctx: int | None = None) -> tuple[Cell, ...]:
        """Comparisons of one kind that bear on a context of `n_ctx` tokens (None: of any length)."""
        found = [cell for cell in self.cells if cell.kind == kind and cell.kv == kv]
        return tuple(cell for cell in found if n_ctx is None or cell.n_ctx < n_ctx)

    def exact_widths(self, kv: str, n_ctx: int | None = None) -> frozenset[int]:
        """Widths over 1 whose logits equal those of single rows at every context that was measured below `n_ctx`."""
        cells = self.find("width", kv, n_ctx)
        return frozenset(cell.n for cell in cells) - {cell.n for cell in cells if cell.deviation}

    def exact(self, kind: Kind, kv: str, n_ctx: int | None = None) -> bool:
        """Whether no comparison of this kind found a difference, and at least one was made."""
        cells = self.find(kind, kv, n_ctx)
        return bool(cells) and not any(cell.deviation for cell in cells)

    def deviation(self, kv: str) -> float | None:
        """Largest deviation between any two ways of computing a row with this KV type; None: not measured.

        Both may be off the reference, in opposite directions: their deviations add up.
        """
        found = sorted((cell.deviation for cell in self.cells if cell.kv == kv), reverse=True)
        return sum(found[:2]) if found else None


def certificate_file(fingerprint: str, build: str, machine: str) -> Path:
    """Where the certificate of this model, build and machine lives.

    Raises:
        ConfigError: no home folder is known.
    """
    return state_file(paths.cache_dir() / "certificates", fingerprint, build, machine)


def load(fingerprint: str, build: str, machine: str) -> tuple[Certificate | None, str | None]:
    """The certificate, and a line for the user where a file was there but is of no use."""
    path = certificate_file(fingerprint, build, machine)
    try:
        if path.exists() and not path.is_file():
            raise OSError(f"{path} is not a file")
        with path.open("rb") as file:
            found = from_json(json.loads(file.read(_MAX_BYTES)))
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f"the certificate cannot be read ({error}): run `edgespec certify` again"
    if (found.fingerprint, found.build, found.machine) != (fingerprint, build, machine):
        return None, "the certificate is of another model, build or machine: run `edgespec certify` again"
    return found, None


def save(certificate: Certificate) -> Path:
    """Write the certificate; the file is whole or as it was before.

    Raises:
        ConfigError: it cannot be written.
    """
    path = certificate_file(certificate.fingerprint, certificate.build, certificate.machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".certificate-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(to_json(certificate), file, allow_nan=False)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"the certificate cannot be written to {path}: {error.strerror or error}") from error
    return path


def to_json(certificate: Certificate) -> dict[str, object]:
    """The certificate as plain data, with the rate of flips beside the flips."""
    raw: dict[str, Any] = {"version": _VERSION, **asdict(certificate)}
    for cell, data in zip(certificate.cells, raw["cells"], strict=True):
        data["flips_per_10k"] = cell.flips_per_10k()
    raw["exact_widths"] = {kv: sorted(certificate.exact_widths(kv)) for kv in certificate.kv_types}
    return raw


def from_json(raw: Any) -> Certificate:
    """The certificate that `to_json` gave.

    Raises:
        ValueError, OverflowError, KeyError, TypeError, AttributeError: it is not one.
    """
    if raw["version"] != _VERSION:
        raise ValueError("it was made by another version of edgespec")
    cells = tuple(_cell(item) for item in raw["cells"])
    prices = tuple(_price(item) for item in raw["prices"])
    refused = tuple((str(kv), str(why)) for kv, why in raw["refused"])
    return Certificate(
        str(raw["fingerprint"]), str(raw["build"]), str(raw["machine"]),
        _count(raw["n_threads"], 1), _count(raw["n_ctx"], 1), bool(raw["quick"]), cells, prices, refused,
        None if raw.get("kernels") is None else str(raw["kernels"]),
    )  # fmt: skip


def _cell(item: Any) -> Cell:
    kind = item["kind"]
    if kind not in get_args(Kind):
        raise ValueError("a comparison of nothing")
    n = _count(item["n"], 1, _MAX_WIDTH if kind == "width" else _MAX_COUNT)
    (deviation,) = _finite([item["deviation"]])
    flips = tuple(Flip(_count(flip["n_ctx"], 0), *_finite([flip["margin"]])) for flip in item["flips"])
    return Cell(kind, _kv(item["kv"]), n, _count(item["n_ctx"], 0), _count(item["n_tokens"], 1), deviation, flips)


def _price(item: Any) -> Price:
    one_thread, one, four, eight = _finite(item[name] for name in ("one_thread_ms", "one_ms", "four_ms", "eight_ms"))
    usual = None if item["usual_ms"] is None else next(iter(_finite([item["usual_ms"]])))
    return Price(_kv(item["kv"]), _count(item["n_ctx"], 0), one_thread, one, four, eight, usual)


def _kv(name: Any) -> str:
    types = name.split("/")
    if len(types) != 2 or not all(kind in KV_BYTES for kind in types):
        raise ValueError("a KV type that there is not")
    return str(name)


def _count(value: Any, least: int, most: int = _MAX_COUNT) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("a count that cannot be")
    return value


def _finite(values: Iterable[Any]) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a number that cannot be")
    return numbers
