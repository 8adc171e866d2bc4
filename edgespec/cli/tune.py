"""`edgespec tune`: measures which options make a model fastest on this device, and keeps them for other commands."""

from __future__ import annotations

import json as jsonlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.interrupt import INTERRUPTED
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig, Value
    from edgespec.tuning_profile import Finding, Profile, Tried

EPILOG = """\b
Examples:
  edgespec tune                            four minutes with the default model
  edgespec tune ./model.gguf --minutes 10
  edgespec tune a.Q4_1.gguf --files a.Q4_0.gguf --files a.Q8_0.gguf
  edgespec tune --show                     what was chosen, and by which numbers
  edgespec tune --forget

\b
Tuned values hold where no flag, variable or file sets an option; `config show`
and --stats say so. EDGESPEC_TUNED=off leaves them out.
"""

Minutes = Annotated[
    float, typer.Option("--minutes", metavar="M", min=0.1, max=600, help="How long it may take, loading included.")
]
Show = Annotated[bool, typer.Option("--show", help="Explain what is tuned, without measuring.")]
Forget = Annotated[bool, typer.Option("--forget", help="Drop what is tuned for this model here.")]
Json = Annotated[bool, typer.Option("--json", help="Print the profile as JSON, and nothing else, on stdout.")]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--files",
        metavar="F",
        show_default=False,
        help="Another file of the same model, to compare; may be given several times. Left out: those among the "
        "downloaded models that differ in quantisation.",
    ),
]

_BY_PASSES = ("threads", "threads_batch", "kv_type")
"""Options that are told apart by passes alone."""
_GROUPS = ("code_edit", "chat", "copy", "summary")
"""Of the built-in questions, those that a slow device gets first: text to copy from, and none."""


def tune(
    model: common.Model = None,
    minutes: Minutes = 4.0,
    show: Show = False,
    forget: Forget = False,
    json: Json = False,
    files: Files = None,
    exact: common.Exact = None,
    kernels: common.Kernels = None,
    offline: common.Offline = False,
    verbose: common.Verbose = False,
) -> None:
    """Find out which threads, KV type, drafter and draft length are fastest here, and use them from then on.

    An option leaves its default only where it was measured to be faster beyond doubt. KV types and files also change
    the text a little. No model file is changed. Ctrl-C leaves an earlier profile as it was.
    """
    from edgespec.cli.render import Screen

    if show and forget:
        raise ConfigError("give --show or --forget, not both")
    config = common.load_config(model=model, exact=exact, kernels=kernels, offline=offline, verbose=verbose)
    screen = Screen(color=config.color)
    if forget:
        _forget(config, screen)
        return
    path, profile = _shown(config, screen) if show else _tuned(config, screen, minutes, files)
    if json:
        from edgespec.tuning_profile import to_json

        typer.echo(jsonlib.dumps(to_json(profile) if profile else None))
        return
    if profile is None:
        typer.echo(f"nothing is tuned for {path.stem}: `edgespec tune` measures it")
    for line in report(profile, path) if profile else ():
        typer.echo(line)


def _forget(config: EngineConfig, screen: Screen) -> None:
    from edgespec.tuning_profile import forget

    path, (fingerprint, _, machine, _) = _known(config)
    screen.line(f"{'dropped' if forget(fingerprint, machine) else 'nothing is tuned'}: {path.stem}")


def _shown(config: EngineConfig, screen: Screen) -> tuple[Path, Profile | None]:
    from edgespec.tuning_profile import load

    path, known = _known(config)
    profile, note = load(*known)
    if note is not None:
        screen.note(note)
    return path, profile


def _known(config: EngineConfig) -> tuple[Path, tuple[str, str, str, str | None]]:
    """The model's file; its fingerprint, llama.cpp's build, the machine and edgespec's kernels."""
    from edgespec import cheap_rows
    from edgespec.device import host
    from edgespec.device.sysfs import Sysfs
    from edgespec.hub import store
    from edgespec.opening import build_name
    from edgespec.target import gguf_check

    path = store.resolve(config.model, config=config, offline=True)
    kernels = cheap_rows.outlook(config).in_force
    return path, (gguf_check.check(path).fingerprint, build_name(), host.cpu_name(Sysfs()), kernels)


def _tuned(config: EngineConfig, screen: Screen, minutes: float, files: list[str] | None) -> tuple[Path, Profile]:
    from edgespec.bench import workloads
    from edgespec.cli.progress import DownloadLine
    from edgespec.hub import store
    from edgespec.tune import Task, others_of
    from edgespec.tune import tune as run
    from edgespec.tuning_profile import save

    with DownloadLine(config.model) as line:
        path = store.resolve(config.model, config=config, offline=config.offline, progress=line.update)
    if files:
        others = tuple(store.resolve(name, config=config, offline=config.offline) for name in files)
    else:
        here = store.open_store(config)
        others = others_of(path, [here.path_of(file) for file in here.installed()])
    questions = workloads.load()
    prompts = tuple(
        min((q.text for q in questions if q.group == group), key=len)
        for group in _GROUPS
    )  # fmt: skip
    screen.line(f"tuning {path.stem}, at most {minutes:g} minutes; Ctrl-C leaves everything as it was")
    try:
        profile = run(Task(path, config, prompts, others, 60 * minutes), _Progress(screen))
    except KeyboardInterrupt:
        screen.ready()
        screen.line("interrupted: an earlier profile stays as it was")
        raise typer.Exit(INTERRUPTED) from None
    screen.ready()
    saved = save(profile)
    screen.line(f"{profile.seconds:.0f} s; saved as {saved}")
    return path, profile


class _Progress:
    """Says what is measured; where lines stay, once each."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: set[str] = set()

    def __call__(self, what: str) -> None:
        if self._screen.tty_err:
            self._screen.wait(f"tuning: {what} ...")
        elif what not in self._said:
            self._said.add(what)
            self._screen.line(what)


def report(profile: Profile, path: Path) -> Iterator[str]:
    """The profile for people: every choice with its numbers."""
    from edgespec.kernels import named

    yield f"{path.stem} on {profile.machine}, llama-cpp-python {profile.build}"
    yield f"with {named(profile.kernels)}"
    yield f"tuned {profile.made} in {profile.seconds:.0f} s; in brackets: 99 % interval"
    for finding in profile.findings:
        yield from _finding(finding)
    if profile.choice.file is not None:
        yield f"fastest file: `edgespec tune {profile.choice.file}`, then chat with it"
    yield f"in force: {profile.choice}"


def _finding(finding: Finding) -> Iterator[str]:
    stays, unit = finding.value is None, "row" if finding.option in _BY_PASSES else "token"
    head = f"{_named(finding.default)}{', the default' if finding.tried else ''}" if stays else _named(finding.value)
    time = "" if finding.s_token is None else f"; {1000 * finding.s_token:.2f} ms a {unit} before"
    dropped = f"; {finding.n_dropped} disturbed rounds did not count" if finding.n_dropped else ""
    yield from _wrapped(f"{finding.option:<14} {head}: {finding.why}{time}{dropped}")
    for item in finding.tried:
        yield from _wrapped(f"  {_named(item.value):>14}  {_tried(item)}")


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent=" " * 18, break_long_words=False, break_on_hyphens=False)


def _tried(item: Tried) -> str:
    if item.note is not None:
        return f"not possible: {item.note}"
    if item.ratio is None:
        return "not measured"
    bounds = "" if item.low is None or item.high is None else f" ({item.low:.3f}..{item.high:.3f})"
    return f"{item.ratio:.3f} times as fast{bounds}, {item.n_rounds} round{'s' if item.n_rounds != 1 else ''}"


def _named(value: Value) -> str:
    return Path(value).name if isinstance(value, str) and value.endswith(".gguf") else str(value)
