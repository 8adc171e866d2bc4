"""`edgespec simulate`: what drafting would gain on a device that is not at hand, in seconds instead of minutes."""

from __future__ import annotations

import json as jsonlib
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.interrupt import INTERRUPTED
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.bench.device_model import Profile
    from edgespec.bench.modes import Mode
    from edgespec.bench.sim_device import Window
    from edgespec.bench.sim_here import Compared
    from edgespec.bench.sim_texts import Texts
    from edgespec.bench.simulate import Outcome, Scene
    from edgespec.cli.render import Screen
    from edgespec.core.heat import Policy
    from edgespec.engine import Engine

HERE = "this-machine"
_POLICIES: tuple[Policy, ...] = ("fast", "balanced", "cool")

EPILOG = """\b
Examples:
  edgespec simulate                                    a Raspberry Pi 5, each text once
  edgespec simulate --profile pi4 --minutes 20 --policy fast,balanced,cool
  edgespec simulate --profile pixel7 --minutes 6 --busy 1-2 --background 3-4
  edgespec simulate --profile this-machine --model ./model.gguf
  edgespec simulate --validate smollm2-135m            predicted against measured

\b
ratio      tokens a second over plain decoding's   groups  geometric mean over groups
tok/rnd    tokens a pass of the model              acc.    drafted tokens that were right
J/token    energy above idle                       throttled  share of the time with a lowered clock
"""

ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", metavar="P", help="pi4, pi5, pixel7, pixel4a, laptop, server, server-stock, or this-machine."
    ),
]
PolicyNames = Annotated[str, typer.Option("--policy", metavar="LIST", help="fast, balanced, cool.")]
Modes = Annotated[str, typer.Option("--modes", metavar="LIST", help="plain, auto, ngram, oracle, fixed-N.")]
Traces = Annotated[
    str | None,
    typer.Option(
        "--traces", metavar="F", show_default=False, help="Recorded answers; left out: some of the default model."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", metavar="M", show_default=False, help="Go on for so long, texts again and again; else each once."
    ),
]
Busy = Annotated[
    list[str] | None,
    typer.Option(
        "--busy",
        metavar="FROM-TO",
        show_default=False,
        help="Minutes in which another program needs a core; FROM-TO:N for N cores. May be given several times.",
    ),
]
Background = Annotated[
    list[str] | None,
    typer.Option(
        "--background",
        metavar="FROM-TO",
        show_default=False,
        help="Minutes in which the system keeps the program to its efficiency cores (without such, to half of them).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of everything random.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", show_default=False, help="Whose passes are timed for this-machine."),
]
Validate = Annotated[
    str | None,
    typer.Option(
        "--validate",
        metavar="MODEL",
        show_default=False,
        help="Run a short benchmark of a real model, and compare what was predicted for it.",
    ),
]
PerGroup = Annotated[int, typer.Option("--per-group", metavar="N", min=1, help="With --validate: questions a group.")]
Longest = Annotated[int, typer.Option("--max-tokens", metavar="N", min=2, help="With --validate: longest answer.")]


def simulate(
    profile: ProfileName = "pi5",
    policy: PolicyNames = "balanced",
    modes: Modes = "plain,fixed-3,fixed-10,auto",
    traces: Traces = None,
    minutes: Minutes = None,
    busy: Busy = None,
    background: Background = None,
    json: Json = False,
    seed: Seed = 0,
    max_draft: common.MaxDraft = None,
    model: ModelName = None,
    validate: Validate = None,
    per_group: PerGroup = 1,
    max_tokens: Longest = 128,
    offline: common.Offline = False,
) -> None:
    """Simulate decoding on a device: its clocks, heat, cores and other programs, and what drafting gains there.

    The controller, the governor and the drafter are the real ones; what passes cost comes from the device's profile
    (where each figure is measured, published or assumed), and the texts are recorded answers of a real model.
    """
    from edgespec.bench.modes import PLAIN_AGAIN, Mode
    from edgespec.bench.sim_device import Events
    from edgespec.bench.sim_report import speed, table, to_json
    from edgespec.bench.sim_texts import load
    from edgespec.bench.simulate import Scene
    from edgespec.bench.simulate import simulate as run
    from edgespec.cli.render import Screen

    arms, policies = _modes(modes), _policies(policy)
    config = common.load_config(model=validate or model, temperature="0", max_draft=max_draft, offline=offline)
    screen = Screen(color=config.color)
    if validate is not None:
        with common.open_engine(config, screen) as engine:
            arms = (*arms, Mode(PLAIN_AGAIN, "none"))
            found, partial = _validate(engine, arms, policies[0], per_group, max_tokens, seed, screen)
        _print_comparison(found, json=json)
        if partial:
            raise typer.Exit(INTERRUPTED)
        return
    if minutes is not None and not (math.isfinite(minutes) and 0.0 < minutes <= 100_000.0):
        raise ConfigError("--minutes must be above 0 and at most 100000")
    events = Events(_windows(busy, "--busy"), _windows(background, "--background"))
    known = None if profile == HERE else _profile(profile)
    texts = load(Path(traces).expanduser() if traces else None)
    if known is None:
        with common.open_engine(config, screen) as engine:
            device = _here(engine)
    else:
        device = known
    scene = Scene(device, events, minutes, config.max_draft, seed)
    outcomes = run(scene, texts, arms, policies)
    if json:
        typer.echo(jsonlib.dumps(to_json(scene, texts, outcomes)))
        return
    typer.echo(f"{device.name}: {device.conditions}")
    typer.echo(f"{_bases(device)}; {len(texts.traces)} texts{_duration(scene, outcomes)}")
    if texts.pieces is None:
        screen.note("the traces come without their tokens' bytes: all tokens are of one kind for the drafter")
    typer.echo("")
    typer.echo(table(outcomes), nl=False)
    typer.echo(f"\nsimulated at {speed(outcomes):.0f} times the speed of the device")


def _modes(text: str) -> tuple[Mode, ...]:
    from edgespec.bench.modes import PLAIN_AGAIN, parse_modes
    from edgespec.draft import NAMES

    return tuple(mode for mode in parse_modes(text, NAMES) if mode.name != PLAIN_AGAIN)


def _policies(text: str) -> tuple[Policy, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    found = tuple(policy for policy in _POLICIES if policy in names)
    unknown = [name for name in names if name not in found]
    if unknown or not found:
        raise ConfigError(f"--policy {text!r}: choose from {', '.join(_POLICIES)}")
    return found


def _profile(name: str) -> Profile:
    from edgespec.bench.profiles import load_profiles

    profiles = load_profiles()
    if name not in profiles:
        raise ConfigError(f"unknown profile {name!r}: choose from {', '.join((*profiles, HERE))}")
    return profiles[name]


def _windows(texts: list[str] | None, option: str) -> tuple[Window, ...]:
    """Windows in seconds from FROM-TO[:CORES] in minutes.

    Raises:
        ConfigError: one of them is not that.
    """
    from edgespec.bench.sim_device import Window

    found = []
    for text in texts or ():
        span, _, cores = text.partition(":")
        first, _, last = span.partition("-")
        try:
            window = Window(60.0 * float(first), 60.0 * float(last), float(cores or 1.0))
        except ValueError:
            raise ConfigError(f"{option} takes FROM-TO in minutes, for example 1-2.5, not {text!r}") from None
        if not (0.0 <= window.begin_s < window.end_s < math.inf and 0.0 < window.cores < math.inf):
            raise ConfigError(f"{option} {text}: the first number must be below the second, and all of them finite")
        found.append(window)
    return tuple(found)


def _here(engine: Engine) -> Profile:
    from edgespec.bench.sim_here import measure, profile_here

    prompt = engine.prompt("Write the numbers from 1 to 40, and then once more.")
    python = measure(engine, prompt)
    cost = engine.machine.governor.cost
    assert cost is not None  # drafting measured it
    return profile_here(cost.table(), python, f"this machine with {engine.model_name}")


def _validate(
    engine: Engine, modes: tuple[Mode, ...], policy: Policy, per_group: int, max_tokens: int, seed: int, screen: Screen
) -> tuple[list[Compared], bool]:
    """What was predicted and measured, and whether Ctrl-C ended the measurement early."""
    from edgespec.bench import workloads
    from edgespec.bench.runner import Plan, Record, prompt_of, run_all
    from edgespec.bench.sim_here import compare, texts_of
    from edgespec.request import sampling_from

    questions = workloads.select(workloads.load(), per_group)
    max_draft = engine.config.max_draft
    sampling = replace(sampling_from(engine.config), seed=seed)
    plan = Plan(questions, modes, sampling, max_tokens=max_tokens, max_draft=max_draft)
    device, record = _here(engine), Record()  # before the benchmark: it is a prediction
    run_all(
        plan, lambda: engine, record, lambda done, n, run: screen.wait(f"{done} of {n}: {run.group} {run.mode}"),
        sensors=engine.machine.monitor.latest,
    )  # fmt: skip
    screen.ready()
    prompts = {question.question_id: prompt_of(engine, question) for question in questions}
    texts: Texts = texts_of(record.runs, prompts, engine.target.piece)
    return compare(device, texts, modes, record.runs, policy, max_draft), record.partial


def _print_comparison(found: list[Compared], *, json: bool) -> None:
    from edgespec.bench.sim_here import comparison_json, comparison_table

    if json:
        typer.echo(jsonlib.dumps(comparison_json(found)))
        return
    typer.echo("ratio to plain decoding, simulated with this machine's cost table and measured:\n")
    typer.echo(comparison_table(found), nl=False)


def _bases(profile: Profile) -> str:
    """How many of the figures are measured, published and assumed."""
    from collections import Counter

    counts = Counter(basis for basis, _ in profile.basis.values())
    return "figures: " + ", ".join(f"{n} {basis}" for basis, n in sorted(counts.items(), key=lambda item: item[0]))


def _duration(scene: Scene, outcomes: list[Outcome]) -> str:
    longest = max(outcome.seconds for outcome in outcomes)
    return (
        f" again and again for {scene.minutes:g} min" if scene.minutes else f", up to {longest / 60.0:.1f} min a mode"
    )
