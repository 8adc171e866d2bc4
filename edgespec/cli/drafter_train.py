"""`edgespec drafter train`: a drafter package for a model, from text that the model itself writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgespec.errors import ConfigError

_ONLY = ("generate", "fit")


def train(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Whose text to learn; left out: the default model.")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.05, help="Time for all, by the clock on the wall.")] = 60,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Left out: all that may be used.")] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="PATH", help="Own files, prompts or chats to make prompts of; several times."),
    ] = None,
    machine: Annotated[
        bool,
        typer.Option("--machine/--no-machine", help="Whether to make prompts of this machine's manuals and the like."),
    ] = True,
    keep_out: Annotated[
        list[Path] | None,
        typer.Option("--keep-out", metavar="FILE", help="Questions (JSON lines) that no prompt may share words with."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the prompts and of the fit.")] = 0,
    name: Annotated[str | None, typer.Option("--name", help="Of the package; left out: by the model's.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where its folder goes; left out: your packages.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="generate|fit", help="Only write text, or only fit what there is.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="The text's file; left out: the model's in the cache.")
    ] = None,
    text_mb: Annotated[int, typer.Option("--text-mb", min=1, help="Most megabytes of text on disk.")] = 4096,
    memory_mb: Annotated[int, typer.Option("--memory-mb", min=16, help="Most of it in memory while fitting.")] = 2048,
    rows: Annotated[int, typer.Option("--rows", min=16, max=65536, help="Tokens that the drafter knows.")] = 6144,
    width: Annotated[int, typer.Option("--width", min=8, max=4096, help="Of its inner layer.")] = 512,
    draft: Annotated[int, typer.Option("--draft", min=1, max=16, help="Tokens of one call.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a drafter on text that the model itself writes, and write its package.

    Prompts are made of what this machine has offline (manuals, documentation, Python's library) and of --from. The text
    is kept in the cache: training again goes on from there. Needs the extra [train].
    """
    from edgespec.cli import common
    from edgespec.cli.render import Screen
    from edgespec.device.sysfs import Sysfs
    from edgespec.device.topology import read_topology
    from edgespec.draft import package
    from edgespec.opening import largest_team
    from edgespec.train import run

    if only not in (None, *_ONLY):
        raise ConfigError(f"--only must be one of {', '.join(_ONLY)}, not {only!r}")
    if name is not None:
        try:
            package.package_name(name)
        except ValueError as error:
            raise ConfigError(f"--name: {error}") from error
    config = common.load_config(model=model)
    screen = Screen(color=config.color)
    given = {"--minutes": minutes, "--seed": seed, "--rows": rows, "--width": width, "--draft": draft,
             "--threads": threads, "--name": name, "--only": only}  # fmt: skip
    words = ["edgespec", "drafter", "train", config.model]
    words += [word for key, value in given.items() if value is not None for word in (key, str(value))]
    words += [] if machine else ["--no-machine"]
    words += [word for path in sources or () for word in ("--from", str(path))]
    words += [word for path in keep_out or () for word in ("--keep-out", str(path))]
    n_threads = threads or largest_team(read_topology(Sysfs()))
    job = run.Job(
        config, minutes, n_threads, tuple(sources or ()), machine, tuple(keep_out or ()), seed,
        name, out, text, only,  # type: ignore[arg-type]  # checked above
        text_mb, memory_mb, n_rows=rows, width=width, n_draft=draft, command=shlex.join(words),
    )  # fmt: skip
    found = run.train(job, screen.note)
    if as_json:
        folder = None if found.folder is None else str(found.folder)
        typer.echo(json.dumps({"folder": folder, "tokens": found.n_tokens, "notes": found.notes}))
        return
    for note in found.notes:
        screen.note(note)
    if found.folder is None:
        typer.echo(f"{found.n_tokens} tokens of text are there now")
    else:
        typer.echo(f"{found.folder}: `edgespec drafter use {found.folder.name}` drafts with it")
