"""`edgespec config`: the options in force, and where each comes from."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edgespec import config

app = typer.Typer(
    help="Show the options in force and where they come from.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.command()
def path() -> None:
    """Print where the configuration file is looked for."""
    from edgespec import paths

    typer.echo(paths.config_file())


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Print every option with its value and source, as a configuration file that gives the same values.

    A source is a variable, a file, or "default". `edgespec config show > FILE` makes a file to start from.
    """
    settings = config.load()
    if as_json:
        options = {
            name: {"value": value, "source": settings.sources[name]}
            for name, value in config.as_dict(settings.config).items()
        }
        typer.echo(json.dumps({"file": str(settings.file), "exists": settings.file.exists(), "options": options}))
        return
    typer.echo(f"# {settings.file}{'' if settings.file.exists() else ' (does not exist)'}")
    typer.echo(settings.to_toml(), nl=False)
