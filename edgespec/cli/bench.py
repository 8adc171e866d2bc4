"""`edgespec bench`: what drafting gains on this machine, for these prompts."""

from __future__ import annotations

import datetime
import math
import os
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.interrupt import INTERRUPTED
from edgespec.errors import ConfigError, EdgespecError

if TYPE_CHECKING:
    from edgespec.bench.compare import Difference
    from edgespec.bench.concurrent import Concurrent
    from edgespec.bench.report import BenchReport
    from edgespec.bench.runner import Plan, Record, Run
    from edgespec.bench.sustain import Sustained
    from edgespec.bench.workloads import Question
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig
    from edgespec.engine import Engine

EPILOG = """\b
Examples:
  edgespec bench                                    the built-in questions
  edgespec bench --modes auto,fixed-3 --rounds 3
  edgespec bench ./model.gguf --workload mine.jsonl --per-group 5 --json out.json
  edgespec bench --chats --workload talk.json       what you typed, and a chat kept with /save
  edgespec bench --modes auto,oracle                how far from a perfect drafter, and why
  edgespec bench --html page.html --sustain 10      charts, and what ten minutes of heat do

\b
A workload has one object a line:
  {"question_id": 1, "group": "chat", "turns": ["Why is the sky blue?"]}

\b
ratio    plain's decode time over the mode's: above 1 is faster than plain
(noise)  a second plain arm: how far from 1 this machine gets by chance
tok/rnd  tokens per pass of the model    acc.  drafted tokens that were right
first    time to the first token         e2e   the ratio of whole answers
marked   heat or other programs were not as beside plain's run: gives no ratio
oracle   knows the text: what a perfect drafter would gain under the same rules
"""

Workload = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="F",
        help="JSONL file, or a chat kept with /save; may be given several times. Left out: built-in.",
        show_default=False,
    ),
]
Chats = Annotated[bool, typer.Option("--chats", help="Ask what you typed into `edgespec chat`, newest first.")]
Modes = Annotated[
    str,
    typer.Option(
        "--modes",
        metavar="LIST",
        help="plain, auto, a drafter's name, fixed-N, NAME-N, oracle; plain is always run, twice.",
    ),
]
PerGroup = Annotated[int, typer.Option("--per-group", metavar="N", min=0, help="Questions a group; 0: all.")]
Longest = Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="Longest answer.")]
Rounds = Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="How often everything is run.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the draw and of the resampling.")]
Out = Annotated[
    str | None, typer.Option("--json", metavar="OUT", help="Also write every number to a file.", show_default=False)
]
FirstRun = Annotated[
    bool, typer.Option("--first-run", help="Load the model anew for every answer, with nothing learned before.")
]
Warm = Annotated[
    bool, typer.Option("--warm", help="Ask each question a second time in the same session, its prompt cached by then.")
]
Page = Annotated[
    str | None,
    typer.Option("--html", metavar="OUT", help="Also write a page with charts (needs matplotlib).", show_default=False),
]
Minutes = Annotated[
    float | None,
    typer.Option("--sustain", metavar="MIN", help="Then short answers for so many minutes.", show_default=False),
]
Together = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", min=2, max=64, help="Then N answers at once.", show_default=False),
]
ToTheEnd = Annotated[bool, typer.Option("--ignore-eog", help="Let every answer go on to its longest length.")]


def bench(
    model: common.Model = None,
    workload: Workload = None,
    chats: Chats = False,
    modes: Modes = "plain,auto",
    per_group: PerGroup = 3,
    max_tokens: Longest = 128,
    rounds: Rounds = 1,
    json: Out = None,
    html: Page = None,
    sustain: Minutes = None,
    concurrency: Together = None,
    temp: common.Temp = None,
    seed: Seed = 0,
    first_run: FirstRun = False,
    warm: Warm = False,
    ignore_eog: ToTheEnd = False,
    max_draft: common.MaxDraft = None,
    threads: common.Threads = None,
    ctx: common.Ctx = None,
    kv_type: common.KvType = None,
    exact: common.Exact = None,
    kernels: common.Kernels = None,
    offline: common.Offline = False,
    verbose: common.Verbose = False,
) -> None:
    """Measure what drafting gains on this machine, against plain decoding.

    Every question is answered in every mode, one right after the other, in changing order, each from an empty cache.
    Greedy unless --temp is given. Ctrl-C prints what was measured so far.
    """
    from edgespec.bench import charts
    from edgespec.bench.modes import parse_modes
    from edgespec.bench.runner import Plan
    from edgespec.cli.render import Screen
    from edgespec.draft import NAMES
    from edgespec.request import sampling_from

    config = common.load_config(
        model=model, temperature="0" if temp is None else temp, seed=seed, max_draft=max_draft, threads=threads,
        n_ctx=ctx, kv_type=kv_type, exact=exact, kernels=kernels, offline=offline, verbose=verbose,
    )  # fmt: skip
    out, page = _writable(json, "--json"), _writable(html, "--html")
    if page is not None:
        charts.check_installed()
    if sustain is not None and not 0 < sustain < math.inf:
        raise ConfigError(f"--sustain {sustain:g}: give a number of minutes above 0")
    arms = parse_modes(modes, NAMES)
    plan = Plan(
        _questions(workload or [], per_group, chats=chats), arms, sampling_from(config), rounds=rounds,
        max_tokens=max_tokens, max_draft=config.max_draft, system=config.system, ignore_eog=ignore_eog, warm=warm,
    )  # fmt: skip
    # The target reserves rows for the longest draft of any mode; asked for, no tuned one takes its place.
    fixed = [arm.fixed_draft for arm in arms if arm.fixed_draft is not None]
    if fixed:
        config = replace(config, max_draft=max(int(config.max_draft), *fixed))
    screen = Screen(color=config.color)
    report = _measure(plan, config, screen, first_run=first_run, minutes=sustain)
    if concurrency is not None and not report.interrupted:
        report = replace(report, concurrent=_together(plan, config, screen, concurrency))
    if out is not None:
        from edgespec.bench.report import save_json

        save_json(report, out)
    _print(report)
    if page is not None:
        from edgespec.bench.html import save

        save(report, page)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _questions(files: list[str], per_group: int, *, chats: bool) -> tuple[Question, ...]:
    """What to ask: the files' questions, the prompts that were typed, or else the built-in workload.

    Raises:
        ConfigError: a file is no workload, or no prompts were kept.
    """
    from edgespec import paths
    from edgespec.bench import workloads
    from edgespec.cli.history import FILE, History

    parts = [workloads.load(Path(file).expanduser()) for file in files]
    if chats:
        history = History(paths.state_dir() / FILE)
        parts.append(workloads.typed(history.load()))
        if history.problem is not None:
            raise ConfigError(history.problem)
        if not any(parts):
            raise ConfigError("nothing typed into `edgespec chat` was kept: name a saved chat with --workload FILE")
    return workloads.select(workloads.together(parts) if parts else workloads.load(), per_group)


def _measure(
    plan: Plan, config: EngineConfig, screen: Screen, *, first_run: bool, minutes: float | None
) -> BenchReport:
    from edgespec.bench import stamp
    from edgespec.bench.engines import FirstRuns
    from edgespec.bench.report import build
    from edgespec.bench.runner import Record, run_all

    before, record = stamp.machine(), Record()
    with common.open_engine(config, screen) as engine:
        if not any(mode.fixed_draft for mode in plan.modes):
            plan = replace(plan, max_draft=engine.config.max_draft)  # the tuned one, as a chat would have it
        sustained = None
        if first_run:
            fresh = FirstRuns(lambda: _reopened(engine, config))
            try:
                run_all(plan, fresh, record, _progress(screen), sensors=engine.machine.monitor.latest)
            finally:
                fresh.close()
        else:
            run_all(plan, lambda: engine, record, _progress(screen), sensors=engine.machine.monitor.latest)
        if minutes is not None and not record.partial:
            sustained = _sustain(plan, engine, minutes, screen)
        screen.ready()
        found = build(
            record,
            seed=plan.sampling.seed,
            differences=_differences(plan, record, engine),
            stamp=stamp.make(engine, before, stamp.machine(), _now(), engine.target.n_threads),
            settings=_settings(plan, first_run=first_run),
            deviation=_certified(engine),
            pass_s=_pass_s(engine),
        )
        return replace(found, sustained=sustained)


def _sustain(plan: Plan, engine: Engine, minutes: float, screen: Screen) -> Sustained:
    from edgespec.bench.sustain import Sustained, modes_of, sustain

    shown = 0.0

    def progress(at_s: float, run: Run) -> None:
        nonlocal shown
        text = f"bench, the long run: {at_s / 60:.1f} of {minutes:g} min: {run.mode}"
        if screen.tty_err:
            screen.wait(text)
        elif at_s >= shown + 60.0:
            shown = at_s
            screen.line(text)

    return sustain(plan, lambda: engine, engine.machine.monitor.latest, Sustained(minutes, modes_of(plan)), progress)


def _together(plan: Plan, config: EngineConfig, screen: Screen, n_sessions: int) -> Concurrent:
    """In an engine of its own: places in the cache for several cost room. What was measured before is never lost."""
    from edgespec.bench.concurrent import Concurrent, measure

    found = Concurrent(n_sessions)
    try:
        with common.open_engine(config, screen, n_sessions) as engine:
            measure(plan, engine, found, _progress(screen, f"{n_sessions} at once"))
    except KeyboardInterrupt:  # while it was loaded
        found.partial = True
    except EdgespecError as error:
        found.problem = str(error)
    screen.ready()
    return found


def _differences(plan: Plan, record: Record, engine: Engine) -> list[Difference]:
    from edgespec.bench.compare import differences, with_margins
    from edgespec.bench.runner import prompt_of

    found = differences(record.runs)
    if record.partial:  # whoever pressed Ctrl-C does not want to wait
        return found
    asked = {item.question_id for item in found}
    prompts = {q.question_id: prompt_of(engine, q, plan.system) for q in plan.questions if q.question_id in asked}
    return with_margins(found, record.runs, engine, prompts, plan.sampling)


def _certified(engine: Engine) -> float | None:
    """By how much logits may differ between ways of computing them, where that was certified."""
    from edgespec import certificate
    from edgespec.device import host
    from edgespec.device.sysfs import Sysfs
    from edgespec.opening import build_name
    from edgespec.target.options import kv_types

    found, _ = certificate.load(engine.fingerprint, build_name(), host.cpu_name(Sysfs()))
    return found.deviation("/".join(kv_types(engine.config.kv_type or "f16"))) if found else None


def _pass_s(engine: Engine) -> dict[int, float] | None:
    """Seconds of a pass by rows, as measured; None: it was not."""
    cost = engine.machine.governor.cost
    return None if cost is None else {width: cost.base_s(width) for width in sorted(cost.widths)}


def _reopened(engine: Engine, config: EngineConfig) -> Engine:
    return type(engine).open(str(engine.model_path), config)


def _settings(plan: Plan, *, first_run: bool) -> dict[str, object]:
    return {
        "modes": [mode.name for mode in plan.modes],
        "questions": len(plan.questions),
        "rounds": plan.rounds,
        "max_tokens": plan.max_tokens,
        "max_draft": plan.max_draft,
        "ignore_eog": plan.ignore_eog,
        "first_run": first_run,
        "warm": plan.warm,
        "sampling": {**asdict(plan.sampling), "logit_bias": {str(k): v for k, v in plan.sampling.logit_bias.items()}},
    }


def _progress(screen: Screen, what: str = "") -> Callable[[int, int, Run], None]:
    shown = 0

    def show(done: int, n_all: int, run: Run) -> None:
        nonlocal shown
        percent = 100 * done // n_all
        where = what or f"{run.group} {run.question_id}"
        text = f"bench {done} of {n_all} ({percent} %): {where} {run.mode}"
        if screen.tty_err:
            screen.wait(text)
        elif percent >= shown + 10 or done == n_all:
            shown = percent
            screen.line(text)

    return show


def _print(report: BenchReport) -> None:
    from edgespec.bench import concurrent, sustain
    from edgespec.bench.table import table

    stamp = report.stamp
    typer.echo(f"{stamp['model']}, {stamp['threads']} threads, KV {stamp['kv_type']}, {stamp['cpu']}")
    typer.echo(textwrap.fill(f"kernels {stamp['kernels']}", 80, break_on_hyphens=False))
    typer.echo(f"load before and after: {_load(stamp['before'])}, {_load(stamp['after'])} ({stamp['date']})")
    typer.echo("")
    typer.echo(table(report), nl=False)
    if report.sustained is not None:
        typer.echo("")
        typer.echo(sustain.table(report.sustained), nl=False)
    if report.concurrent is not None:
        typer.echo("")
        typer.echo(concurrent.table(report.concurrent), nl=False)


def _load(moment: object) -> str:
    found = moment.get("load_average") if isinstance(moment, dict) else None
    return f"{found[0]:.2f}" if found else "unknown"


def _writable(name: str | None, flag: str) -> Path | None:
    """The path to write to; found out before an hour of measuring, not after.

    Raises:
        ConfigError: nothing can be written there.
    """
    if name is None:
        return None
    path = Path(name).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{flag} {name}: not a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} {name}: the folder cannot be written to")
    return path


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
