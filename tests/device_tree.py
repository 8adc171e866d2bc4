"""Writes the /sys and /proc of recorded machines into a folder, whole or damaged. Knows nothing of what reads them.

A record is a TOML file in `tests/devices`: facts about one machine and where they come from. `[[cores]]` entries
describe cores that are alike: `ids`, and where known `capacity`, `max_khz`, `scaling_khz`, `part`, `cppc`, `clock`
(cores that share their clock), `threads` (list of groups), `cluster`, `package`, `off` (which of them are offline),
`bare` (online, but without files of their own), `kind` (the right class).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "devices"
CPU = "sys/devices/system/cpu"
Damage = tuple[tuple[str, bytes | str | None], ...]
GARBAGE = b"\x01\xff~ not a number\n"


@dataclass(frozen=True)
class Record:
    """One machine. `right` gives the cores of each kind: performance, efficiency, middle, prime."""

    name: str
    source: str
    masks: Mapping[str, str]
    cores: Mapping[int, Mapping[str, Any]]
    cpuinfo: Mapping[str, Any]
    right: Mapping[str, frozenset[int]]
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files as they are."""

    @property
    def present(self) -> frozenset[int]:
        return frozenset(self.cores)

    @property
    def online(self) -> frozenset[int]:
        return frozenset(cpu for cpu, core in self.cores.items() if not core.get("off"))

    def clusters(self) -> list[frozenset[int]]:
        """Cores of one tier each."""
        tiers = [self.right[kind] for kind in ("efficiency", "middle", "prime")]
        return [tier for tier in tiers if tier] if self.right["prime"] else [s for s in self._halves() if s]

    def _halves(self) -> list[frozenset[int]]:
        return [self.right["performance"], self.right["efficiency"]]


def cpus(text: str) -> list[int]:
    """The cores of "0-3,8"."""
    ends = [part.split("-") for part in text.split(",") if part]
    return [cpu for end in ends for cpu in range(int(end[0]), int(end[-1]) + 1)]


def cpu_list(numbers: Any) -> str:
    """The kernel's text for some cores, without ranges, which it would also understand."""
    return ",".join(map(str, sorted(numbers)))


def load(name: str) -> Record:
    return parse(name, tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def parse(name: str, data: Mapping[str, Any]) -> Record:
    cores: dict[int, dict[str, Any]] = {}
    right: dict[str, set[int]] = {kind: set() for kind in ("performance", "efficiency", "middle", "prime")}
    for entry in data["cores"]:
        off, bare = cpus(entry.get("off", "")), cpus(entry.get("bare", ""))
        threads = [cpus(group) for group in entry.get("threads", [])]
        for cpu in cpus(entry["ids"]):
            core = {key: value for key, value in entry.items() if key not in ("ids", "off", "bare", "threads")}
            core["threads"] = next((group for group in threads if cpu in group), [cpu])
            for key in ("clock", "cluster", "package"):
                if key in core:
                    core[key] = [cpu] if core[key] == "own" else cpus(core[key])
            if cpu in off or cpu in bare:
                core = {key: core[key] for key in ("capacity", "part", "kind") if key in core}
                core["off" if cpu in off else "bare"] = True
            cores[cpu] = core
            kind = entry["kind"]
            right[kind].add(cpu)
            if kind in ("middle", "prime"):
                right["performance"].add(cpu)
    return Record(
        name=name,
        source=data["source"],
        masks=data.get("masks", {}),
        cores=dict(sorted(cores.items())),
        cpuinfo=data.get("cpuinfo", {}),
        right={kind: frozenset(members) for kind, members in right.items()},
        files=data.get("files", {}),
    )


def unplugged(record: Record, off: frozenset[int]) -> Record:
    """The same machine after these cores went offline: their files are gone, `cpu_capacity` stays."""
    cores = {}
    for cpu, core in record.cores.items():
        if cpu in off:
            cores[cpu] = {key: core[key] for key in ("capacity", "kind") if key in core} | {"off": True}
        else:
            gone = {
                key: [c for c in core[key] if c not in off] for key in ("threads", "cluster", "package") if key in core
            }
            cores[cpu] = {**core, **gone}
    online = record.online - off
    masks = dict(record.masks)
    if "online" in masks:
        masks["online"] = cpu_list(online)
        masks["offline"] = cpu_list(record.present - online)
    listed = record.cpuinfo.get("listed")
    cpuinfo = dict(record.cpuinfo)
    if listed is not None:
        cpuinfo["listed"] = cpu_list(set(cpus(listed)) - off)
    return Record(record.name, record.source, masks, cores, cpuinfo, record.right, record.files)


def files(record: Record) -> dict[str, str]:
    """Contents by path."""
    found = {f"{CPU}/{name}": f"{text}\n" for name, text in record.masks.items()}
    for cpu, core in record.cores.items():
        folder = f"{CPU}/cpu{cpu}"
        values = {
            "online": "0" if core.get("off") else None,
            "cpu_capacity": core.get("capacity"),
            "cpufreq/cpuinfo_max_freq": core.get("max_khz"),
            "cpufreq/scaling_max_freq": core.get("scaling_khz"),
            "cpufreq/related_cpus": " ".join(map(str, core["clock"])) if "clock" in core else None,
            "acpi_cppc/highest_perf": core.get("cppc"),
            "topology/thread_siblings_list": cpu_list(core["threads"]) if "threads" in core else None,
            "topology/cluster_cpus_list": cpu_list(core["cluster"]) if "cluster" in core else None,
            "topology/core_siblings_list": cpu_list(core["package"]) if "package" in core else None,
        }
        found.update({f"{folder}/{name}": f"{value}\n" for name, value in values.items() if value is not None})
        found.setdefault(f"{folder}/uevent", "")
    if record.cpuinfo:
        found["proc/cpuinfo"] = _cpuinfo(record)
    return {**found, **record.files}


def _cpuinfo(record: Record) -> str:
    info = record.cpuinfo
    numbers = cpus(info.get("listed", cpu_list(record.cores)))
    if "vendor" in info:
        return "\n".join(
            f"processor\t: {cpu}\nvendor_id\t: {info['vendor']}\nmodel name\t: {record.name}\n" for cpu in numbers
        )
    if "shared" in info:  # old kernels: all processors, then whichever core ran the read
        return "".join(f"processor\t: {cpu}\n" for cpu in numbers) + _identity(info["shared"])
    blocks = [f"processor\t: {cpu}\n" + _identity(record.cores[cpu].get("part", "")) for cpu in numbers]
    return "\n".join(blocks)


def _identity(part: str) -> str:
    implementer, _, number = part.partition(":")
    return f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU part\t: {number}\n" if number else ""


def write(contents: Mapping[str, str], root: Path) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@contextmanager
def damaged(root: Path, damage: Damage) -> Iterator[int]:
    """Replace every file that matches a pattern, and put all back at the end; yields how many there were.

    Bytes are written, "folder" puts a folder in its place (reads then fail with an error, as of a driver), None
    removes it.
    """
    kept: dict[Path, bytes] = {}
    for pattern, content in damage:
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                kept.setdefault(path, path.read_bytes())
                path.unlink()
                if content == "folder":
                    path.mkdir()
                elif isinstance(content, bytes):
                    path.write_bytes(content)
    yield len(kept)
    for path, content in kept.items():
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
