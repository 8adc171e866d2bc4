"""The device profiles of the simulator, read from profiles.toml, where every figure has its basis."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from edgespec.bench.device_model import Cluster, Profile, Throttle

BASES = ("measured", "published", "assumed")


def load_profiles() -> dict[str, Profile]:
    """All profiles by key, in the order of the file.

    Raises:
        ValueError: a figure without a basis, or with one that is none of `BASES`.
        TypeError: a figure that is unknown or missing.
    """
    text = resources.files("edgespec.bench").joinpath("profiles.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return {key: _profile(key, _whole(table, tables)) for key, table in tables.items()}


def _whole(table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A table with what it takes from another one."""
    own = dict(table)
    like = own.pop("like", None)
    return own if like is None else {**tables[like], **own}


def _profile(key: str, table: Mapping[str, Any]) -> Profile:
    basis: dict[str, tuple[str, str]] = {}
    throttle = _figures(table["throttle"], f"{key}.throttle", basis)
    cores: dict[str, Any] = {
        kind: _clusters(table.get(kind, ()), f"{key}.{kind}", basis) for kind in ("clusters", "efficiency")
    }
    rest = {name: value for name, value in table.items() if name not in {"throttle", *cores}}
    figures = _figures(rest, key, basis)
    if "stairs" in figures:
        figures["stairs"] = tuple((int(width), float(seconds)) for width, seconds in figures["stairs"])
    return Profile(throttle=Throttle(**throttle), basis=basis, **cores, **figures)


def _clusters(
    tables: Sequence[Mapping[str, Any]], where: str, basis: dict[str, tuple[str, str]]
) -> tuple[Cluster, ...]:
    clusters = []
    for i, table in enumerate(tables):
        figures = _figures(table, f"{where}.{i}", basis)
        activity = figures.pop("activity")
        figures["watts"] = tuple(activity * watts for watts in figures["watts"])
        clusters.append(Cluster(**figures))
    return tuple(clusters)


def _figures(table: Mapping[str, Any], where: str, basis: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """The values of a table; their bases go into `basis`. A bare text is a name, not a figure."""
    values: dict[str, Any] = {}
    for name, entry in table.items():
        if isinstance(entry, str):
            values[name] = entry
            continue
        if not isinstance(entry, list) or len(entry) != 3 or entry[1] not in BASES or not entry[2]:
            raise ValueError(f"{where}.{name}: expected [value, {' | '.join(BASES)}, source], got {entry!r}")
        values[name] = tuple(entry[0]) if isinstance(entry[0], list) else entry[0]
        basis[f"{where}.{name}"] = (entry[1], entry[2])
    return values
