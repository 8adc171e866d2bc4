"""`edgespec doctor`: what this device is, what runs where, and what could be better."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.errors import ConfigError, DeviceError
from edgespec.hub.files import mb

if TYPE_CHECKING:
    from edgespec.device.topology import Core
    from edgespec.doctor import Advice, Findings, ModelFacts
    from edgespec.kernels import Status
    from edgespec.target.build import Build

EPILOG = """\b
Examples:
  edgespec doctor
  edgespec doctor --json | jq .target_cpus
  edgespec doctor --capture phone.tar.gz     to send with a report
  mkdir phone && tar -xzf phone.tar.gz -C phone && edgespec doctor --root phone
"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")]
Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="DIR",
        show_default=False,
        help="Read DIR/sys and DIR/proc, as from an unpacked capture, instead of this machine's.",
    ),
]
Capture = Annotated[
    str | None,
    typer.Option(
        "--capture",
        metavar="FILE",
        show_default=False,
        help="Also record what was read in a new tar.gz: cores, sensors, limits; no names, addresses, serial numbers.",
    ),
]
_WIDTH, _LABEL = 80, 12
_PATIENCE_S = 20.0
_MAX_CORE_LINES = 20


def doctor(json: Json = False, root: Root = None, capture: Capture = None) -> None:
    """Say what this device is, what would run on which cores, and what could be better.

    Nothing is changed or sent. What cannot be found out is unknown, and nothing that is missing is an error.
    """
    from edgespec.advice import advise
    from edgespec.doctor import as_json, examine

    found = examine(Path(root) if root is not None else None)
    if capture is not None:
        _capture(Path(capture), found)
    advice = advise(found)
    if json:
        from json import dumps

        typer.echo(dumps(as_json(found, advice)))
        return
    for line in report(found, advice):
        typer.echo(line)


def _capture(file: Path, found: Findings) -> None:
    from edgespec.device.capture import record, write_capture
    from edgespec.device.sysfs import Sysfs, within

    sysfs = Sysfs(found.root or Path("/"))
    files = within(_PATIENCE_S, lambda: record(sysfs, found.topology, "" if found.root else None), None)
    if files is None:
        raise DeviceError(f"--capture {file}: a sensor does not answer, nothing is recorded")
    try:
        write_capture(file, files)
    except FileExistsError:
        raise ConfigError(f"--capture {file}: exists already; name a new file") from None
    except OSError as error:
        raise ConfigError(f"--capture {file}: cannot be written: {error.strerror or error}") from error
    typer.echo(f"{sum(not path.endswith('/') for path in files)} files recorded in {file}", err=True)


def report(found: Findings, advice: Sequence[Advice]) -> Iterator[str]:
    """Findings and advice for a person, line by line, none over 80 columns where words can be parted."""
    yield from _section("device", _device(found))
    yield from _section("heat, power, load", _conditions(found))
    if found.build is not None:
        yield from _section("llama.cpp", [*_build(found.build, found.features), *_rows(found.rows, found.features)])
    yield from _section("models", [_model(model) for model in found.models])
    if found.python is not None:
        yield from _section("Python", _packages(found))
    notes = [*found.notes, *found.topology.notes, *found.conditions.notes]
    yield from _section("notes", [("", note) for note in notes])
    yield from _section(
        "advice", [(f"{n}", f"{item.what}\nBecause {item.why} ({item.basis}).") for n, item in enumerate(advice, 1)]
    )


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield title
    narrow = all(len(label) <= 1 for label, _ in rows)
    for label, raw in rows:
        text = _printable(raw)
        first, rest = (f"  {label or '-'} ", "    ") if narrow else (f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
        # A number keeps its percent sign.
        for line in text.replace(" %", "\N{NO-BREAK SPACE}%").split("\n"):
            pieces = textwrap.wrap(
                line,
                _WIDTH,
                initial_indent=first,
                subsequent_indent=rest,
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield from (piece.replace("\N{NO-BREAK SPACE}", " ") for piece in pieces)
            first = rest


def _printable(text: str) -> str:
    """Without what could steer a terminal: names come from files, and a folder's may be anybody's."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _device(found: Findings) -> list[tuple[str, str]]:
    topology, who = found.topology, found.placement
    kinds = "one kind of core" if topology.homogeneous else "several kinds of core"
    kinds = "nothing tells the cores apart" if topology.source == "nothing" else f"{kinds} (by {topology.source})"
    limits = ["no CPU quota" if topology.cpu_limit is None else f"a CPU quota of {topology.cpu_limit:g} cores"]
    n_online = sum(core.online for core in topology.cores)
    for cpus, what in ((found.cpuset, "its cpuset"), (found.affinity, "its affinity mask")):
        if cpus is not None and len(cpus) < n_online:
            limits.append(f"bound to {_list(cpus)} by {what}")
    free = found.free_bytes
    memory = "unknown: the kernel's figure cannot be read" if free is None else f"{mb(free)} free"
    page = f", pages of {found.page_bytes // 1024} KB" if found.page_bytes else ""
    return [
        ("processor", found.processor or "unknown: it does not give its name"),
        *([("system", found.system)] if found.system else []),
        ("cores", "\n".join([*_core_lines(topology.cores), kinds])),
        ("usable", "; ".join([_list(topology.usable), *limits])),
        ("target", f"{_list(who.target)}: {who.why_target}"),
        ("drafter", f"{_list(who.drafter)}: {who.why_drafter}" if who.drafter else who.why_drafter),
        ("memory", memory + page),
    ]


def _core_lines(cores: Sequence[Core]) -> Iterator[str]:
    """A line for each set of cores that are alike, as far as a screen has room."""
    alike: dict[str, list[int]] = {}
    for core in cores:
        clock = "clock unknown" if core.max_khz is None else f"to {core.max_khz / 1e6:.2f} GHz"
        capacity = "capacity unknown" if core.capacity is None else f"capacity {core.capacity}"
        kind = "kind unknown" if core.kind == "unknown" else core.kind
        alike.setdefault(", ".join([kind, clock, capacity, *([] if core.online else ["offline"])]), []).append(core.id)
    shown = list(alike.items())[:_MAX_CORE_LINES]
    width = max(len(_list(ids)) for _, ids in shown)
    for said, ids in shown:
        yield f"{_list(ids):<{width}}  {said}"
    n_more = len(cores) - sum(len(ids) for _, ids in shown)
    if n_more:
        yield f"... and {n_more:,} more"


def _conditions(found: Findings) -> list[tuple[str, str]]:
    now = found.conditions
    heat = "unknown: no sensor of the processor answers" if now.temp_c is None else f"{now.temp_c:.1f} °C"
    source = f" (from {now.heat_source})" if now.heat_source else ""
    if now.headroom is None:
        headroom = "unknown: no throttling threshold is known"
    else:
        headroom = f"{now.headroom:.2f} used up of 1.00, where throttling begins"
    throttled = {None: "unknown: nothing here tells", False: "no", True: "yes"}[now.throttled]
    cap = "" if now.freq_cap is None else f"; clock allowed to {100 * now.freq_cap:.0f} % of the highest"
    if now.battery is None:
        battery = "no battery found"
    else:
        mains = {None: "", False: ", on battery", True: ", on mains"}[now.on_mains]
        battery = f"{100 * now.battery:.0f} %{mains}"
    power = "unknown: no meter answers" if now.power_w is None else f"{now.power_w:.1f} W (from {now.power_source})"
    if now.busy_others is None:
        busy = "unknown: processor time cannot be read" if found.root is None else "not looked at in a folder"
    else:
        busy = f"{now.busy_others:.1f} cores taken by other programs"
    waits = "" if now.pressure is None else f"; waiting for a core {100 * now.pressure:.0f} % of the last 10 s"
    return [
        ("heat", heat + source),
        ("headroom", headroom),
        ("throttled", throttled + cap),
        ("battery", battery),
        ("power", power),
        ("load", busy + waits),
    ]


def _build(build: Build, cpu: frozenset[str] | None) -> list[tuple[str, str]]:
    from edgespec.target.build import kernels

    version = f"llama-cpp-python {build.package or 'not installed'}"
    if build.error is not None:
        return [("version", version), ("state", f"unusable: {build.error}")]
    if cpu is None:
        unused = "unknown: the kernel does not list what the processor has"
    else:
        unused = " ".join(build.lacks(cpu)) or "none that this build could use"
    switches = {"OPENMP", "LLAMAFILE", "REPACK"}
    return [
        ("version", f"{version}, ggml {build.ggml or 'unknown'}, commit {build.commit or 'unknown'}"),
        ("compiled in", " ".join(name for name in build.features if name not in switches) or "no special instructions"),
        ("left unused", unused),
        ("OpenMP", "yes" if build.has("OPENMP") else "no"),
        ("kernels", "for passes of several rows, by the type of the weights:"),
        *(("  " + kind, what) for kind, what in kernels(build).items()),
    ]


def _rows(rows: Status | None, cpu: frozenset[str] | None) -> list[tuple[str, str]]:
    from edgespec.kernels import types_for

    if rows is None:
        return []
    instead = f"; for few rows of {', '.join(types_for(cpu))}" if rows.active else ""
    return [("edgespec's", f"{rows}{instead}")]


def _model(model: ModelFacts) -> tuple[str, str]:
    from edgespec.exact import spelled

    lines = [model.name]
    if model.path is not None and model.file_bytes is not None:
        lines[0] += f": {model.quantisation}, {mb(model.file_bytes)}"
    if model.n_ctx is not None and model.need_bytes is not None:
        lines.append(f"needs {mb(model.need_bytes)} with {model.n_ctx} tokens of context")
    if model.problem is not None:
        lines.append(model.problem)
    if model.pass_s is not None:
        plain_s = model.pass_s[1]
        wide = [f"{rows} rows x{s / plain_s:.1f}" for rows, s in sorted(model.pass_s.items()) if rows in (2, 4, 8, 16)]
        lines.append(f"measured here: 1 row {1000 * plain_s:.1f} ms, {', '.join(wide)}")
    elif model.path is not None:
        lines.append("passes not measured yet with these options: the first answer does it")
    if model.exact_widths is not None:
        found = [f"{kv} {spelled(frozenset(widths))}" for kv, widths in model.exact_widths.items()]
        lines.append(f"certified exact: {'; '.join(found)}")
    elif model.path is not None:
        lines.append("not certified: edgespec certify finds out which passes give the text of plain decoding")
    return model.role, "\n".join(lines)


def _packages(found: Findings) -> list[tuple[str, str]]:
    from edgespec.doctor import OPTIONAL, PACKAGES

    def said(name: str) -> str:
        return f"{name} {found.packages[name] or 'missing'}"

    optional = [f"{said(name)} (for {use})" for name, use in OPTIONAL.items()]
    return [
        ("version", found.python or "unknown"),
        ("needed", ", ".join(map(said, PACKAGES))),
        ("optional", ", ".join(optional)),
    ]


def _list(cpus: Sequence[int]) -> str:
    """Cores as the kernel writes them: "0-3,6"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"
