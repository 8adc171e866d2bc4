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

    A source is a variable, a file, "tuned" (see `edgespec tune`; of the configured model), or "default".
    `edgespec config show > FILE` makes a file to start from.
    """
    settings, note = _with_profile(config.load())
    if note is not None:
        typer.echo(f"edgespec: {note}", err=True)
    if as_json:
        options = {
            name: {"value": value, "source": settings.sources[name]}
            for name, value in config.as_dict(settings.config).items()
        }
        typer.echo(json.dumps({"file": str(settings.file), "exists": settings.file.exists(), "options": options}))
        return
    typer.echo(f"# {settings.file}{'' if settings.file.exists() else ' (does not exist)'}")
    typer.echo(settings.to_toml(), nl=False)


def _with_profile(settings: config.Settings) -> tuple[config.Settings, str | None]:
    """With what is tuned for the configured model, if it is on this machine, and a line where that is of no use."""
    from edgespec import cheap_rows
    from edgespec.device import host
    from edgespec.device.sysfs import Sysfs
    from edgespec.errors import ModelError
    from edgespec.hub import store
    from edgespec.opening import build_name
    from edgespec.target import gguf_check
    from edgespec.tuning_profile import choice_for

    options = settings.config
    try:
        path = store.resolve(options.model, config=options, offline=True)
        fingerprint = gguf_check.check(path).fingerprint
    except ModelError:  # no model, no profile; the commands that need it say what is wrong with it
        return settings, None
    kernels = cheap_rows.outlook(options).in_force
    choice, note = choice_for(options, fingerprint, build_name(), host.cpu_name(Sysfs()), kernels)
    return config.with_tuned(settings, choice.values()), note
