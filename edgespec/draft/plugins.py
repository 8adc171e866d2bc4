"""Drafters of other packages, registered as entry points of the group `edgespec.drafters`.

In a package's pyproject.toml: `[project.entry-points."edgespec.drafters"]`, then `NAME = "module:factory"`. The factory
takes what those of `edgespec.draft.REGISTRY` take. Source: the entry points specification of packaging.python.org.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from edgespec.errors import DrafterError
from edgespec.interfaces import Drafter

GROUP = "edgespec.drafters"


def names() -> tuple[str, ...]:
    """Which drafters are registered, whether or not they work."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def make(name: str, piece: Callable[[int], bytes]) -> Drafter:
    """The drafter `name`, made by its package.

    Raises:
        DrafterError: there is none, or its package cannot be imported or fails, in one line.
    """
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        raise DrafterError(f"no installed package registers a drafter {name!r}")
    try:
        made = found[0].load()(piece)
    except Exception as error:  # a foreign package may fail in any way
        raise DrafterError(f"{found[0].value} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(made, Drafter):
        raise DrafterError(f"{found[0].value} made a {type(made).__name__}, which has not name, propose and close")
    return made
