"""`edgespec kernels`: edgespec's own kernels for passes of few rows: build, look at, switch on and off."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

app = typer.Typer(
    help="Build, show and switch kernels that make verify passes cheap. Each row gets what ggml gives it on its own.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.command()
def build() -> None:
    """Compile the kernels for this processor and try them; takes some seconds. Set-up does it, too."""
    from edgespec import kernels
    from edgespec.device.features import cpu_features
    from edgespec.device.sysfs import Sysfs
    from edgespec.errors import DeviceError

    built = kernels.build(cpu_features(Sysfs()))
    if built.problem is not None:
        raise DeviceError(f"built, but not to be used: {built.problem}")
    typer.echo(f"{built.instruction_set} kernels are built and give ggml's results: {built.library}")
    typer.echo(f"by {built.compiler}")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say whether models are opened with the kernels, and if not, why."""
    from edgespec import cheap_rows, config

    found = cheap_rows.load(config.load().config)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    tested = "" if found.test_ms is None else f"; self-test passed in {found.test_ms:.0f} ms"
    typer.echo(f"{found}{tested}")


@app.command()
def on() -> None:
    """Use the kernels on this machine from now on; builds them if that was not done."""
    from edgespec import cheap_rows, kernels
    from edgespec.device.features import cpu_features
    from edgespec.device.sysfs import Sysfs
    from edgespec.errors import DeviceError

    features = cpu_features(Sysfs())
    try:
        kernels.find_built(features)
    except DeviceError:
        build()
    cheap_rows.remember(True)
    typer.echo("on, for models opened from now on")


@app.command()
def off() -> None:
    """Use ggml's own kernels from now on."""
    from edgespec import cheap_rows

    cheap_rows.remember(False)
    typer.echo("off, for models opened from now on")
