"""`edgespec certify`: which ways of computing give the text of plain decoding here, and what they cost."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.errors import ModelError

if TYPE_CHECKING:
    from edgespec.certificate import Cell, Certificate, Kind
    from edgespec.certify_grid import CertTarget, Grid
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig

EPILOG = """\b
Examples:
  edgespec certify --quick                   three minutes for the default model
  edgespec certify ./model.gguf              half an hour: more contexts, more text
  edgespec certify --kv-type f16/bf16 --ctx 4096

\b
A deviation of 0 means that logits are equal bit for bit to those of single rows
on one thread. What is exact is used by --exact.
"""

Quick = Annotated[bool, typer.Option("--quick", help="Two lengths of context and little text.")]
Json = Annotated[bool, typer.Option("--json", help="Print the certificate as JSON, and nothing else, on stdout.")]
Longest = Annotated[
    int | None,
    typer.Option("--ctx", metavar="N", min=256, help="Longest context to certify: 2048, or 640 with --quick."),
]
Widest = Annotated[int, typer.Option("--max-draft", metavar="N", min=1, max=63, help="Longest draft to certify.")]

_QUICK_S, _FULL_S = 120.0, 1740.0
_QUICK_CONTEXTS, _CONTEXTS = (96, 640), (96, 272, 1024, 2048)
"""Below and above 256 cells, where llama.cpp may begin to split the work on single rows; and 1k, and 2k."""
_QUICK_TOKENS, _TOKENS, _PIECE = 64, 1024, 64


def certify(
    model: common.Model = None,
    quick: Quick = False,
    json: Json = False,
    ctx: Longest = None,
    max_draft: Widest = 15,
    threads: common.Threads = None,
    kv_type: common.KvType = None,
    kernels: common.Kernels = None,
    offline: common.Offline = False,
    verbose: common.Verbose = False,
) -> None:
    """Find out on this device which ways of drafting leave the text exactly as it is.

    Measures how far logits move with the rows of a pass, threads, KV type, other sequences in the batch and the chunks
    of a prompt. Ctrl-C leaves an earlier certificate as it was.
    """
    from edgespec.certificate import save, to_json
    from edgespec.cli.render import Screen

    config = common.load_config(
        model=model, threads=threads, kv_type=kv_type, kernels=kernels, offline=offline, verbose=verbose
    )
    screen = Screen(color=config.color)
    began_s = time.perf_counter()
    certificate = _measure(config, screen, quick=quick, n_ctx=ctx, max_draft=max_draft)
    path = save(certificate)
    if json:
        typer.echo(jsonlib.dumps(to_json(certificate)))
        return
    for line in report(certificate):
        typer.echo(line)
    screen.line(f"{time.perf_counter() - began_s:.0f} s; saved as {path}")


def _measure(config: EngineConfig, screen: Screen, *, quick: bool, n_ctx: int | None, max_draft: int) -> Certificate:
    from edgespec import cheap_rows
    from edgespec.bench import workloads
    from edgespec.certificate import Certificate
    from edgespec.certify import KV_TYPES
    from edgespec.certify import certify as run
    from edgespec.certify_grid import Grid, Means, thread_counts, widths
    from edgespec.cli.progress import DownloadLine
    from edgespec.device import host
    from edgespec.device.placement import placement
    from edgespec.device.sysfs import Sysfs
    from edgespec.device.topology import read_topology
    from edgespec.hub import store
    from edgespec.machine import full_team
    from edgespec.opening import build_name, largest_team, with_kv
    from edgespec.target import gguf_check, lib
    from edgespec.target.llama import load
    from edgespec.target.options import TargetOptions, kv_types

    with DownloadLine(config.model) as line:
        path = store.resolve(config.model, config=config, offline=config.offline, progress=line.update)
    rows = cheap_rows.load(config)
    info = gguf_check.check(path, repacked_types=lib.repacked_types())
    topology = read_topology(Sysfs())
    n_threads = max(full_team(config, placement(topology), topology).wide, 1)
    usual = _QUICK_CONTEXTS if quick else _CONTEXTS
    n_ctx = n_ctx or usual[-1]
    contexts = _contexts(usual, min(n_ctx, info.n_ctx_train or n_ctx))
    grid = Grid(
        contexts=contexts,
        widths=widths(max_draft),
        threads=thread_counts(n_threads, max(n_threads, largest_team(topology))),
        n_threads=n_threads,
        n_tokens=_QUICK_TOKENS if quick else _TOKENS,
        n_piece=_PIECE if not quick else _PIECE // 2,
    )
    screen.line(
        f"certifying {path.stem}, threads: {n_threads}; about {_minutes(quick)} on a quiet machine, longer on a busy "
        "one; Ctrl-C leaves no trace"
    )

    def opener(kv: str, n_ctx_each: int, n_sessions: int) -> CertTarget:
        options = TargetOptions(
            n_ctx=n_sessions * -(-n_ctx_each // 256) * 256, n_threads=n_threads, n_seq_max=n_sessions,
            n_rows_max=1 + max(max_draft, 8 * n_sessions), n_rs_seq=max_draft, use_mmap=config.mmap,
            kv_unified=n_sessions == 1 or info.recurrent_bytes > 0, verbose=config.verbose,
        )  # fmt: skip
        return load(path, with_kv(options, kv), info)

    with load(path, TargetOptions(n_ctx=256), info) as target:
        text = target.encode("\n\n".join(question.text for question in workloads.load()), bos=True)
    kvs = KV_TYPES if config.kv_type is None else ("/".join(kv_types(config.kv_type)),)
    text = _long_enough(text, grid)
    means = Means(opener, text, grid, time.perf_counter, _Progress(screen))
    cells, prices, refused = run(kvs, means, (_QUICK_S if quick else _FULL_S) * len(kvs) / len(KV_TYPES))
    screen.ready()
    if not cells:
        raise ModelError(f"{path.name}: nothing could be measured: {'; '.join(why for _, why in refused)}")
    return Certificate(
        info.fingerprint, build_name(), host.cpu_name(Sysfs()), max(grid.threads),
        max(cell.n_ctx for cell in cells) + grid.n_piece, quick, tuple(cells), tuple(prices), tuple(refused),
        rows.in_force,
    )  # fmt: skip


def _contexts(usual: Sequence[int], n_ctx: int) -> tuple[int, ...]:
    """Where to measure: the usual lengths up to the longest wanted, doubled from there; of two, the second is that."""
    if usual == _QUICK_CONTEXTS:
        return tuple(sorted({min(usual[0], n_ctx), n_ctx}))
    found = [length for length in usual if length <= n_ctx] or [n_ctx]
    while found[-1] * 2 <= n_ctx:
        found.append(found[-1] * 2)
    return tuple(found)


def _long_enough(text: list[int], grid: Grid) -> list[int]:
    """The text, repeated where the longest context wants more."""
    n_wanted = grid.contexts[-1] + 2 * grid.n_piece
    return text * -(-n_wanted // len(text))


def _minutes(quick: bool) -> str:
    return f"{3 if quick else 30} minutes for a small model"


class _Progress:
    """Says what is measured, once each."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, what: str) -> None:
        if self._screen.tty_err:
            self._screen.wait(f"certifying {what} ...")
        else:
            self._screen.line(what)


def report(certificate: Certificate) -> Iterator[str]:
    """The certificate for people, in 80 columns."""
    from edgespec.exact import recipes
    from edgespec.kernels import named

    for kv in certificate.kv_types:
        yield kv
        for n_ctx in dict.fromkeys(cell.n_ctx for cell in certificate.cells if cell.kv == kv):
            yield from _at(certificate, kv, n_ctx)
    for kv, why in certificate.refused:
        yield f"{kv}: not possible with this model: {why}"
    yield ""
    yield f"times were taken with {named(certificate.kernels)}"
    found = recipes(certificate, certificate.n_ctx)
    if not any(len(recipe.widths) > 1 for recipe in found):
        yield "no width is exact here: with --exact nothing is drafted"
    for recipe in found:
        if len(recipe.widths) > 1:
            cost = "cost unknown" if recipe.cost is None else f"costs {100 * (recipe.cost - 1):+.0f} %"
            yield f"exact: {recipe}; {cost}"


def _at(certificate: Certificate, kv: str, n_ctx: int) -> Iterator[str]:
    from edgespec.exact import spelled

    def of(kind: Kind) -> list[Cell]:
        return [cell for cell in certificate.find(kind, kv) if cell.n_ctx == n_ctx]

    widths = of("width")
    exact = frozenset(cell.n for cell in widths if not cell.deviation)
    rest = [cell for cell in widths if cell.deviation]
    off = f"; the others by up to {max(cell.deviation for cell in rest):.2f}" if rest else ""
    yield f"  {n_ctx:>5} tokens  exact: {spelled(exact)}{off}"
    names: dict[Kind, str] = {
        "single": "threads", "wide": "threads of wide passes", "prefill": "of the prompt", "chunk": "chunks of it",
        "company": "company",
    }  # fmt: skip
    parts = [(name, of(kind)) for kind, name in names.items()]
    free = [name for name, cells in parts if cells and not any(cell.deviation for cell in cells)]
    bound = [
        f"{name} {max(c.deviation for c in cells):.2f}" for name, cells in parts if any(c.deviation for c in cells)
    ]
    if free:
        yield f"                same with any: {', '.join(free)}"
    if bound:
        yield f"                not with: {', '.join(bound)}"
    flips = [flip for cell in widths for flip in cell.flips]
    if flips:
        n = sum(cell.n_tokens for cell in rest)
        rate, low, high = _pooled(rest).flips_per_10k()
        yield (
            f"                flips: {len(flips)} of {n} tokens, {rate:.0f} in 10,000 ({low:.0f}..{high:.0f}), "
            f"margins up to {max(flip.margin for flip in flips):.2f}"
        )
    for price in certificate.prices:
        if (price.kv, price.n_ctx) == (kv, n_ctx):
            yield (
                f"                1, 4, 8 rows: {price.one_ms:.1f}, {price.four_ms:.1f}, {price.eight_ms:.1f} ms; "
                f"1 row on one thread {price.one_thread_ms:.1f} ms"
            )


def _pooled(cells: Sequence[Cell]) -> Cell:
    from edgespec.certificate import Cell

    flips = tuple(flip for cell in cells for flip in cell.flips)
    first = cells[0]
    n_tokens = sum(cell.n_tokens for cell in cells)
    return Cell(first.kind, first.kv, first.n, first.n_ctx, n_tokens, max(c.deviation for c in cells), flips)
