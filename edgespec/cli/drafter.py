"""`edgespec drafter`: list, show, choose, remove and measure drafter packages."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgespec.cli import drafter_store, drafter_train
from edgespec.errors import ConfigError

app = typer.Typer(
    help="Drafter packages, tiny models that guess where n-grams find nothing; and what drafting remembers.",
    epilog="\b\nExamples:\n  edgespec drafter list\n  edgespec drafter use ./my-drafter\n"
    "  edgespec drafter eval my-drafter\n  edgespec drafter use none\n  edgespec drafter index ~/notes ./src",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

NONE = "none"
app.command()(drafter_store.index)
app.command()(drafter_store.forget)
app.command()(drafter_train.train)


def _names(incomplete: str) -> list[str]:
    from edgespec.draft import package

    return [folder.name for folder in package.installed() if folder.name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name that `edgespec drafter list` shows.", autocompletion=_names)
]
NameOrFolder = Annotated[
    str, typer.Argument(metavar="NAME", help="A name of the list, or a package's folder.", autocompletion=_names)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_packages(as_json: Json = False) -> None:
    """List the packages on this machine; the one in use is marked *. RIGHT: its first tokens, at training."""
    from edgespec.draft import package
    from edgespec.errors import DrafterError

    chosen = package.in_use()
    rows: list[dict[str, Any]] = []
    for folder in package.installed():
        row: dict[str, Any] = {"name": folder.name, "folder": str(folder), "in_use": folder.name == chosen}
        try:
            card = package.read_card(folder)
            row |= {"kind": card.kind, "target": card.target_name, "rates": list(card.rates), "problem": None}
        except DrafterError as error:
            row |= {"kind": None, "target": None, "rates": None, "problem": str(error)}
        rows.append(row)
    if as_json:
        typer.echo(json.dumps({"in_use": chosen, "packages": rows}))
        return
    if not rows:
        typer.echo("no drafter packages are here; `edgespec drafter use FOLDER` takes one in")
    for row in rows:
        mark = "*" if row["in_use"] else " "
        if row["problem"] is not None:
            typer.echo(f"{mark} {row['name']}: {row['problem']}")
            continue
        rates = " ".join(f"{rate:.2f}" for rate in row["rates"])
        typer.echo(f"{mark} {row['name']}  {row['kind']}  for {row['target']}  right {rates or '–'}")


@app.command()
def show(name: NameOrFolder, as_json: Json = False) -> None:
    """Show what a package is, and check its files."""
    from edgespec.draft import package

    folder = package.find(name)
    found = package.load(folder)
    facts = {"folder": str(folder), **{key: value for key, value in asdict(found.card).items() if key != "files"}}
    facts["bytes"] = sum((folder / file).stat().st_size for file in found.card.files)
    facts["in_use"] = folder.name == package.in_use()
    facts["files"] = list(found.card.files)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        words = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        text = "–" if words is None else "yes" if words is True else "no" if words is False else str(words)
        typer.echo(f"{key.replace('_', ' ')}: {text}")


@app.command()
def use(name: Annotated[str, typer.Argument(metavar="NAME", help="A name, a folder to take in, or none.")]) -> None:
    """Draft with this package from now on where n-grams find nothing; `none`: with n-grams alone.

    A folder is copied to the other packages first.
    """
    from edgespec.draft import onnx, package

    if name == NONE:
        package.use(None)
        typer.echo("n-grams alone draft from now on")
        return
    folder = package.find(name)
    loaded = onnx.load(folder)
    if folder not in package.installed():
        folder = package.install(folder)
    package.use(folder.name)
    typer.echo(f"{folder.name} drafts from now on, for {loaded.card.target_name}; {loaded.runner.name} computes it")
    if loaded.note is not None:
        typer.echo(loaded.note, err=True)


@app.command()
def rm(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete one of your packages."""
    from edgespec.draft import package
    from edgespec.hub.files import mb

    folder = package.find(name)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"to delete {name} without being asked, add --yes")
        if not typer.confirm(f"Delete {folder}?", err=True):
            typer.echo("nothing was deleted", err=True)
            return
    typer.echo(f"{mb(package.remove(name))} freed", err=True)


@app.command("eval")
def evaluate(
    name: NameOrFolder,
    model: Annotated[str | None, typer.Option("--model", help="The model; left out: the default one.")] = None,
    workload: Annotated[Path | None, typer.Option("--workload", help="Questions, as for `edgespec bench`.")] = None,
    questions: Annotated[int, typer.Option("--questions", min=1, help="How many of them, spread over all.")] = 12,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Longest answer.")] = 96,
    temp: Annotated[str | None, typer.Option("--temp", help="Temperature; left out: greedy.")] = None,
    computed_by: Annotated[str | None, typer.Option("--by", help="onnxruntime or numpy; left out: what works.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how often a package's tokens are right on a model, and what one takes."""
    from edgespec.bench import drafter_eval, workloads
    from edgespec.cli import common
    from edgespec.cli.render import Screen
    from edgespec.draft import onnx, package
    from edgespec.request import sampling_from

    if computed_by not in (None, *onnx.ENGINES):
        raise ConfigError(f"--by must be one of {', '.join(onnx.ENGINES)}, not {computed_by!r}")
    config = common.load_config(model=model, temperature="0" if temp is None else temp)
    loaded = onnx.load(package.find(name), engine=computed_by)
    config = replace(config, exact=False, max_draft=max(int(config.max_draft), loaded.card.n_draft))
    asked = workloads.load(workload)
    asked = asked[:: max(1, len(asked) // questions)][:questions]
    screen = Screen(color=config.color)
    with common.open_engine(config, screen) as engine:
        found = drafter_eval.evaluate(
            engine, loaded, asked, max_tokens, sampling_from(config),
            lambda done, n_all: screen.wait(f"{done} of {n_all} questions"),
        )  # fmt: skip
        screen.ready()
        if as_json:
            typer.echo(json.dumps({"model": engine.model_name, "by": loaded.runner.name, **asdict(found)}))
            return
        typer.echo(f"{loaded.card.name} on {engine.model_name}, computed by {loaded.runner.name}: "
                   f"{found.n_tokens} tokens in {found.n_rounds} rounds, {len(asked)} questions")  # fmt: skip
    typer.echo("place  tried  right  at training")
    for place, share in enumerate(found.by_place):
        rates = loaded.card.rates
        trained = f"{rates[place]:.2f}" if place < len(rates) else "–"
        typer.echo(f"{place + 1:5}  {share.n:5}  {_share(share.value):>5}  {trained:>11}")
    typer.echo(f"where n-grams find nothing: {_share(found.beyond_ngrams.value)} of {found.beyond_ngrams.n}")
    typer.echo("confidence  tried  right")
    for low, high, share in zip(
        (0.0, *drafter_eval.BOUNDS), (*drafter_eval.BOUNDS, 1.0), found.by_confidence, strict=True
    ):
        typer.echo(f"{low:.1f} to {high:.1f}  {share.n:5}  {_share(share.value):>5}")
    took = "–" if found.ms_token is None else f"{found.ms_token:.2f} ms"
    typer.echo(f"a drafted token took {took}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
