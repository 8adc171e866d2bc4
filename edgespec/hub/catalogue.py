"""Models known by name: reads models/catalogue.toml. Knows nothing of what is on this machine."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgespec.errors import ModelNotFoundError

HUB = "hf:"
PIP = "pip:"
_OWNER_OR_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_FILE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,250}")
_SPLIT = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file on the model hub, `hf:owner/repo/file.gguf`; the file may lie in folders of the repository."""

    owner: str
    repo: str
    file: str

    @property
    def path(self) -> PurePosixPath:
        """Where it lies in the models folder."""
        return PurePosixPath(self.owner, self.repo, self.file)

    def parts(self) -> list[HubFile]:
        """All files of a split model whose first part this is; itself alone where it is not split.

        Raises:
            ModelNotFoundError: it is a later part of a split model.
        """
        found = _SPLIT.search(self.file)
        if found is None:
            return [self]
        first, count = int(found[1]), int(found[2])
        if first != 1 or not 1 <= count <= 999:
            raise ModelNotFoundError(f"{HUB}{self.path} is part {first} of {count}: name part 1, the others follow")
        stem = self.file[: found.start()]
        return [HubFile(self.owner, self.repo, f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A model carried by a Python package: `pip:requirement/member`, with an exact version."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue. Sizes in bytes; `memory` is for 4096 tokens of context."""

    name: str
    title: str
    params: str
    quantisation: str
    licence: str
    size: int
    memory: int
    sources: tuple[str, ...]
    size_approximate: bool = False
    sha256: str | None = None

    @property
    def hub_file(self) -> HubFile:
        """The hub source. Every entry has one: it also names the file's place in the models folder."""
        return next(parse_hub(source) for source in self.sources if source.startswith(HUB))

    @property
    def package_file(self) -> PackageFile | None:
        """The package source, if there is one."""
        for source in self.sources:
            if source.startswith(PIP):
                requirement, _, member = source.removeprefix(PIP).partition("/")
                return PackageFile(requirement, member)
        return None

    @property
    def exact_size(self) -> int | None:
        """The size the file must have; None where it is not known exactly."""
        return None if self.size_approximate else self.size


def parse_hub(text: str) -> HubFile:
    """Read `hf:owner/repo/file.gguf`.

    Raises:
        ModelNotFoundError: it is not such an address; one that leads out of the models folder is not.
    """
    owner, _, rest = text.removeprefix(HUB).partition("/")
    repo, _, file = rest.partition("/")
    valid = (
        _OWNER_OR_REPO.fullmatch(owner)
        and _OWNER_OR_REPO.fullmatch(repo)
        and file.endswith(".gguf")
        # No part may begin with a dot: neither .. nor hidden files.
        and all(_FILE_PART.fullmatch(part) for part in file.split("/"))
    )
    if not valid:
        raise ModelNotFoundError(f"{text[:200]!r} is not a hub address: write hf:owner/repo/file.gguf")
    return HubFile(owner, repo, file)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """The catalogue, in the file's order."""
    package = Path(__file__).parents[1]
    # Inside a wheel the folder travels with the package; in a checkout it lies beside it.
    for folder in (package / "models_data", package.parent / "models"):
        path = folder / "catalogue.toml"
        if path.is_file():
            rows = tomllib.loads(path.read_text(encoding="utf-8"))["model"]
            return tuple(Entry(**{**row, "sources": tuple(row["sources"])}) for row in rows)
    raise ModelNotFoundError("the catalogue of models is missing from this installation: install edgespec again")


def find(name: str) -> Entry:
    """The entry of that name.

    Raises:
        ModelNotFoundError: there is none; close names are given.
    """
    names = {entry.name: entry for entry in entries()}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}," if near else "`edgespec models list` shows the names,"
    raise ModelNotFoundError(f"no model is named {name[:100]!r}: {hint} or give a path, or hf:owner/repo/file.gguf")
