"""edgespec: speculative decoding on the device, with the target as the only authority over the text.

Names are loaded when they are first used, so that `import edgespec` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.aio import AsyncStream
    from edgespec.chat import Chat
    from edgespec.config import EngineConfig
    from edgespec.constraint import Constraint
    from edgespec.core.session import Session
    from edgespec.engine import Engine
    from edgespec.errors import (
        BusyError,
        ConfigError,
        ConstraintError,
        DeviceError,
        DownloadError,
        DrafterError,
        EdgespecError,
        ModelError,
    )
    from edgespec.interfaces import (
        Chunk,
        Draft,
        Drafter,
        Limits,
        Message,
        Report,
        Result,
        Sampling,
        TokenLogprobs,
        Usage,
    )
    from edgespec.options import Options

__version__ = "0.1.0.dev0"

_HOME_OF = {
    "AsyncStream": "edgespec.aio",
    "BusyError": "edgespec.errors",
    "Chat": "edgespec.chat",
    "Chunk": "edgespec.interfaces",
    "ConfigError": "edgespec.errors",
    "Constraint": "edgespec.constraint",
    "ConstraintError": "edgespec.errors",
    "DeviceError": "edgespec.errors",
    "DownloadError": "edgespec.errors",
    "Draft": "edgespec.interfaces",
    "Drafter": "edgespec.interfaces",
    "DrafterError": "edgespec.errors",
    "EdgespecError": "edgespec.errors",
    "Engine": "edgespec.engine",
    "EngineConfig": "edgespec.config",
    "Limits": "edgespec.interfaces",
    "Message": "edgespec.interfaces",
    "ModelError": "edgespec.errors",
    "Report": "edgespec.interfaces",
    "Result": "edgespec.interfaces",
    "Options": "edgespec.options",
    "Sampling": "edgespec.interfaces",
    "Session": "edgespec.core.session",
    "TokenLogprobs": "edgespec.interfaces",
    "Usage": "edgespec.interfaces",
}

__all__ = [
    "AsyncStream",
    "BusyError",
    "Chat",
    "Chunk",
    "ConfigError",
    "Constraint",
    "ConstraintError",
    "DeviceError",
    "DownloadError",
    "Draft",
    "Drafter",
    "DrafterError",
    "EdgespecError",
    "Engine",
    "EngineConfig",
    "Limits",
    "Message",
    "ModelError",
    "Options",
    "Report",
    "Result",
    "Sampling",
    "Session",
    "TokenLogprobs",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562).

    Raises:
        AttributeError: the package has no such public name.
    """
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show the public names although they are not loaded yet."""
    return sorted({*globals(), *__all__})
