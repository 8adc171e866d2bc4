"""`edgespec models`: list, fetch, show, locate and remove models."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec import config
from edgespec.errors import ConfigError, ModelNotFoundError
from edgespec.hub import catalogue, store
from edgespec.hub.catalogue import HUB, Entry, HubFile
from edgespec.hub.files import mb

if TYPE_CHECKING:
    from edgespec.target.gguf_check import GGUFInfo

app = typer.Typer(
    help="List, fetch, show and remove models.",
    epilog="\b\nExamples:\n  edgespec models list\n  edgespec models pull qwen2.5-1.5b\n"
    "  edgespec models pull hf:owner/repo/file.gguf\n  edgespec models show ./model.gguf",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


def _names(incomplete: str) -> list[str]:
    return [entry.name for entry in catalogue.entries() if entry.name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A name of the list, or hf:owner/repo/file.gguf.", autocompletion=_names),
]
NameOrPath = Annotated[
    str,
    typer.Argument(metavar="NAME_OR_PATH", help="A name, hf:owner/repo/file.gguf, or a path.", autocompletion=_names),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _store() -> store.Store:
    return store.open_store(config.load().config)


def _hub_file(name: str) -> tuple[HubFile, Entry | None]:
    found = store.identify(name)
    if isinstance(found, Path):
        raise ConfigError(
            f"{found} is a path; give a name that `edgespec models list` shows, or hf:owner/repo/file.gguf"
        )
    return found


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List the models known by name and those on this machine (marked *).

    MEMORY is what a model needs about, with 4096 tokens of context.
    """
    here = _store()
    rows = [_row(here, entry.hub_file, entry) for entry in catalogue.entries()]
    known = {entry.hub_file for entry in catalogue.entries()}
    rows += [_row(here, file, None) for file in here.installed() if file not in known]
    if as_json:
        typer.echo(json.dumps({"folder": str(here.folder), "models": rows}))
        return
    table: list[tuple[str, ...]] = [("", "NAME", "SIZE", "MEMORY", "PARAMS", "QUANT", "LICENCE")]
    table += [
        (
            "*" if row["installed"] else "",
            str(row["name"]),
            f"{'~' if row['size_approximate'] else ''}{_size(row['size'])}",
            *(_size(row[key]) if key == "memory" else str(row[key] or "–") for key in _COLUMNS),
        )
        for row in rows
    ]
    typer.echo(_table(table))


_COLUMNS = ("memory", "params", "quantisation", "licence")


def _row(here: store.Store, file: HubFile, entry: Entry | None) -> dict[str, object]:
    installed = here.is_installed(file, entry)
    path = here.path_of(file)
    row: dict[str, object] = {
        "name": entry.name if entry else f"{HUB}{file.path}",
        "installed": installed,
        "path": str(path) if installed else None,
        "size": sum(here.path_of(part).stat().st_size for part in file.parts()) if installed else None,
        "size_approximate": False,
    }
    if entry is not None:
        row["title"] = entry.title
        if not installed:
            row["size"], row["size_approximate"] = entry.size, entry.size_approximate
        row["sources"] = list(entry.sources)
    for column in _COLUMNS:
        row[column] = getattr(entry, column) if entry else None
    return row


def _size(n_bytes: object) -> str:
    return mb(n_bytes) if isinstance(n_bytes, int) else "–"


def _table(rows: list[tuple[str, ...]]) -> str:
    """Columns side by side. On a narrow terminal those further right go first."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    room = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 1000
    count = len(widths)
    while count > 2 and sum(widths[:count]) + 2 * (count - 1) > room:
        count -= 1
    lines = ["  ".join(row[index].ljust(widths[index]) for index in range(count)).rstrip() for row in rows]
    return "\n".join(lines)


@app.command()
def pull(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again although it is here.")] = False,
) -> None:
    """Fetch a model, taking up an interrupted download where it stopped, and print its path."""
    from edgespec.cli.progress import DownloadLine

    file, entry = _hub_file(name)
    options = config.load().config
    here = store.open_store(options)
    if not force and here.is_installed(file, entry):
        typer.echo(here.path_of(file))
        return
    if options.offline:
        raise ModelNotFoundError(f"{name} is not on this machine, and offline mode forbids fetching it")
    with DownloadLine(name) as line:
        path = here.pull(file, entry, line, force=force)
    typer.echo(path)


@app.command()
def path(name: NameOrPath) -> None:
    """Print where a model's file is; exit code 3 if it is not on this machine."""
    typer.echo(_local(name, _store()))


def _local(name: str, here: store.Store) -> Path:
    found = store.identify(name)
    if isinstance(found, Path):
        return store.resolve(name)
    if not here.is_installed(*found):
        raise ModelNotFoundError(f"{name} is not on this machine: run `edgespec models pull {name}`")
    return here.path_of(found[0])


@app.command()
def show(name: NameOrPath, as_json: Json = False) -> None:
    """Show what a model is: from its file where it is here, else from the catalogue."""
    found = store.identify(name)
    here = _store()
    row = {} if isinstance(found, Path) else _row(here, *found)
    if row.get("installed") is False and row.get("title"):
        _print_facts(row, as_json)
        return
    from edgespec.target import gguf_check

    # The catalogue's words go before the file's: its title is often a training run's name.
    info = gguf_check.check(_local(name, here))
    _print_facts({**_facts(info), **row, "exact_widths": _certified(info.fingerprint)}, as_json)


def _certified(fingerprint: str) -> dict[str, list[int]] | None:
    """Exact widths by KV type, as certified on this machine; None: not certified."""
    from edgespec import certificate
    from edgespec.device import host
    from edgespec.device.sysfs import Sysfs
    from edgespec.opening import build_name

    found, _ = certificate.load(fingerprint, build_name(), host.cpu_name(Sysfs()))
    return {kv: sorted(found.exact_widths(kv)) for kv in found.kv_types} if found else None


def _facts(info: GGUFInfo) -> dict[str, object]:
    return {
        "path": str(info.path),
        "architecture": info.arch,
        "title": info.name,
        "quantisation": info.quant,
        "parameters": info.n_params,
        "size": info.file_bytes,
        "files": len(info.parts),
        "layers": info.n_layer,
        "embedding": info.n_embd,
        "heads": info.n_head,
        "context_trained": info.n_ctx_train,
        "vocabulary": info.n_vocab,
        "chat_template": info.has_template,
        "fingerprint": info.fingerprint,
    }


def _print_facts(facts: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif key in {"size", "memory"}:
            text = _size(value)
        elif isinstance(value, int):
            text = f"{value:,}"
        elif isinstance(value, dict):
            text = "; ".join(f"{kv} {' '.join(map(str, widths)) or 'none'}" for kv, widths in value.items())
        elif isinstance(value, list):
            text = " ".join(map(str, value))
        else:
            text = "–" if value is None else str(value)
        typer.echo(f"{key.replace('_', ' ')}: {text}")


@app.command()
def rm(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a fetched model, and what an interrupted download of it left."""
    file, _ = _hub_file(name)
    here = _store()
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"to delete {name} without being asked, add --yes")
        if not typer.confirm(f"Delete {here.path_of(file)}?", err=True):
            typer.echo("nothing was deleted", err=True)
            return
    typer.echo(f"{mb(here.remove(file))} freed", err=True)
