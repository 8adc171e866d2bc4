"""`edgespec serve`: a server on this machine that speaks OpenAI's API."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from edgespec.config import EngineConfig

INSTALL = "pip install 'edgespec[server]'"
EPILOG = """\b
Examples:
  edgespec serve
  edgespec serve qwen2.5-1.5b --parallel 4 --port 9000
  edgespec serve --host 0.0.0.0 --api-key-file ~/edgespec.key

\b
In a browser: http://127.0.0.1:8080/ is a chat.
A client: OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
Also there: /health, /metrics (Prometheus), /props, /tokenize, /detokenize.
"""

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; beyond this machine: a key.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: any that is free.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", show_default=False,
        help="Answer only who sends this key. Others on this machine can see it in the list of processes.",
    ),
]  # fmt: skip
ApiKeyFile = Annotated[
    str | None, typer.Option("--api-key-file", metavar="FILE", show_default=False, help="Read the key from a file.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", show_default=False,
        help="Another name under which the server is asked for, as behind a proxy; may be given several times.",
    ),
]  # fmt: skip
Parallel = Annotated[
    int,
    typer.Option("--parallel", metavar="N", min=1, max=64, help="Answers at a time; they share passes and context."),
]
Queue = Annotated[int, typer.Option("--queue", metavar="N", min=0, max=10_000, help="Answers that may wait.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="S", min=1.0, help="Seconds for an answer, the time in the queue included."),
]
Seed = Annotated[
    str | None,
    typer.Option(
        "--seed", metavar="N", show_default=False,
        help="Seed of requests that name none. Left out: another for each, told in the answer.",
    ),
]  # fmt: skip


def serve(
    model: common.Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    allow_host: AllowHost = None,
    parallel: Parallel = 1,
    queue: Queue = 16,
    timeout: Timeout = 600.0,
    max_tokens: common.MaxTokens = None,
    temp: common.Temp = None,
    top_k: common.TopK = None,
    top_p: common.TopP = None,
    min_p: common.MinP = None,
    repeat_penalty: common.RepeatPenalty = None,
    named: common.Set = None,
    seed: Seed = None,
    drafter: common.DrafterName = None,
    max_draft: common.MaxDraft = None,
    threads: common.Threads = None,
    policy: common.Policy = None,
    ctx: common.Ctx = None,
    kv_type: common.KvType = None,
    exact: common.Exact = None,
    kernels: common.Kernels = None,
    offline: common.Offline = False,
    think: common.Think = None,
    verbose: common.Verbose = False,
) -> None:
    """Serve a model on this machine with OpenAI's API.

    Sampling options are for requests that say nothing else. Ctrl-C takes nothing new and ends after the answers that
    are being made; a second one ends at once. What is said is written to no log. There is no TLS: beyond this machine,
    put a proxy in front.
    """
    config = common.load_config(
        named,
        model=model, max_tokens=max_tokens, temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p,
        repeat_penalty=repeat_penalty, seed=seed, drafter=drafter, max_draft=max_draft, threads=threads,
        policy=policy, n_ctx=ctx,
        kv_type=kv_type, exact=exact, kernels=kernels, offline=offline, think=think, verbose=verbose,
    )  # fmt: skip
    try:
        from edgespec.server import run
    except ImportError as error:
        raise ConfigError(f"the server needs {error.name}: {INSTALL}") from error
    key = key_of(api_key, api_key_file)
    if key is None and run.is_exposed(host):
        raise ConfigError(f"other machines may reach {host}: give --api-key-file FILE, or leave out --host")
    with contextlib.closing(run.bind(host, port)) as sock:
        fixed_seed = _is_fixed(seed, named)
        _serve(config, sock, _Wanted(host, key, tuple(allow_host or ()), parallel, queue, timeout, fixed_seed))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The server's own options."""

    host: str
    key: str | None
    hosts: tuple[str, ...]
    parallel: int
    queue: int
    timeout_s: float
    fixed_seed: bool


def key_of(api_key: str | None, file: str | None) -> str | None:
    """The key that clients must send.

    Raises:
        ConfigError: it is given twice, cannot be read, or is not fit for an HTTP header.
    """
    if api_key is not None and file is not None:
        raise ConfigError("give the key with --api-key or with --api-key-file, not both")
    where = "--api-key" if file is None else file
    key = common.read_text(Path(file)).strip() if file is not None else api_key
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{where}: a key is a line of ASCII characters without spaces")
    return key


def _is_fixed(seed: str | None, named: list[str] | None) -> bool:
    """Whether somebody set the seed: then it holds for requests that name none."""
    from edgespec import config

    said = seed is not None or any(item.startswith("seed=") for item in named or ())
    return said or config.load().sources["seed"] != config.DEFAULT


def _serve(config: EngineConfig, sock: socket.socket, wanted: _Wanted) -> None:
    """Load the model and answer until told to end."""
    from datetime import UTC, datetime

    from edgespec import jobs
    from edgespec.cli.render import Screen
    from edgespec.server import app, guard, run, schema, stream

    screen = Screen(color=config.color, status=False)
    with common.open_engine(config, screen, n_sessions=wanted.parallel) as engine:
        service = jobs.Service(engine, n_places=wanted.parallel, n_queue=wanted.queue)
        names = dict.fromkeys((engine.model_name, config.model, Path(config.model).name, "default"))
        application = app.make(
            service,
            schema.Defaults(tuple(names), config.seed if wanted.fixed_seed else None),
            created=int(datetime.now(UTC).timestamp()),
            log=screen.error,
            patience=stream.Patience(answer_s=wanted.timeout_s),
            hosts=[*wanted.hosts, *([] if guard.is_address(wanted.host) else [wanted.host])],
            api_key=wanted.key,
        )
        where = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        screen.line(
            f"{engine.model_name} on http://{where}:{sock.getsockname()[1]}/ (API: /v1), "
            f"{engine.n_ctx // wanted.parallel} tokens of context; Ctrl-C ends it"
        )
        run.Server(application, service).run_until_told(sock)
