"""What the next run should know: cost table and acceptance, one small JSON file a model, machine and setting.

Losing it costs a second of calibration and nothing else, so no failure here is ever fatal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path

from edgespec.core.acceptance import Prior
from edgespec.core.cost import CostTable

_VERSION = 4
_MAX_BYTES = 2**20


def state_file(folder: Path, *parts: str) -> Path:
    """Where the state for this combination of model, machine and settings lives."""
    return folder / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:24]}.json"


def load_state(path: Path) -> tuple[CostTable | None, Prior, str | None]:
    """Cost table and acceptance as saved, and a line for the user where a file was there but of no use."""
    try:
        raw = json.loads(read_small(path))
        if raw["version"] != _VERSION:
            return None, Prior(), None
        base = {int(width): float(s) for width, s in raw["base_s"].items()}
        slopes = float(raw["slope_one"]), float(raw["slope_wide"]), float(raw["switch_s"])
        one, wide = (int(n) for n in raw["threads"])
        restore_s = float(raw.get("restore_s", 0.0))
        numbers = (*base.values(), *slopes, restore_s)
        sound = all(math.isfinite(x) and x >= 0 for x in numbers) and all(1e-7 < s < 1e4 for s in base.values())
        sound = sound and 1 <= one <= 512 and 1 <= wide <= 512
        if 1 not in base or not sound or not all(0 < width <= 4096 for width in base):
            raise ValueError("absurd times")
        prior = {
            (int(at), str(drafter), int(strength)): (float(hits), float(tries))
            for at, drafter, strength, hits, tries in raw["acceptance"]
            if 0 <= float(hits) <= float(tries) < 1e6
        }
        return CostTable(base, *slopes, one, wide, restore_s), Prior(prior), None
    except FileNotFoundError:
        return None, Prior(), None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, Prior(), f"what was learned earlier cannot be read and is measured anew ({error})"


def read_small(path: Path) -> str:
    """A small regular file's text; anything else could block or never end.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read, or is none.
    """
    if not path.is_file() and path.exists():
        raise OSError(f"{path} is not a file")
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8")


def save_state(path: Path, table: CostTable, prior: Prior) -> str | None:
    """Write the state; a line for the user where that failed."""
    raw = {
        "version": _VERSION,
        "base_s": {str(width): s for width, s in table.base_s.items()},
        "slope_one": table.slope_one,
        "slope_wide": table.slope_wide,
        "switch_s": table.switch_s,
        "threads": [table.one, table.wide],
        "restore_s": table.restore_s,
        "acceptance": [[*key, *counts] for key, counts in sorted(prior.table.items())],
    }
    try:
        write_json(path, raw)
    except OSError as error:
        return f"what was learned is not saved: {error}"
    return None


def write_json(path: Path, raw: object) -> None:
    """Write a file that is whole or as it was before, and its folder where there is none.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".state-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(raw, file)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def drop_state(path: Path) -> None:
    """Forget a state that no longer describes the machine, so that the next run calibrates."""
    with contextlib.suppress(OSError):  # an unwritable cache was already reported by `save_state`
        path.unlink()
