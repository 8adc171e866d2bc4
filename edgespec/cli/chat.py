"""`edgespec chat`: a conversation in the terminal, or one answer in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.common import (
    Color, Ctx, DrafterName, Json, KvType, MaxDraft, MaxTokens, MinP, Model, Offline, Prompt, RepeatPenalty, Seed,
    Stats, Stop, System, Temp, Think, Threads, TopK, TopP, Verbose,
)  # fmt: skip

if TYPE_CHECKING:
    from edgespec.cli.commands import Desk
    from edgespec.config import EngineConfig

NoStatus = Annotated[bool, typer.Option("--no-status", help="No status line after answers.", rich_help_panel="Output")]
NoHistory = Annotated[bool, typer.Option("--no-history", help="Keep no file of what was typed.", rich_help_panel="Output")]


def chat(
    model: Model = None,
    prompt: Prompt = None,
    system: System = None,
    json: Json = False,
    stats: Stats = False,
    max_tokens: MaxTokens = None,
    temp: Temp = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repeat_penalty: RepeatPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    drafter: DrafterName = None,
    max_draft: MaxDraft = None,
    threads: Threads = None,
    ctx: Ctx = None,
    kv_type: KvType = None,
    offline: Offline = False,
    think: Think = None,
    color: Color = None,
    no_status: NoStatus = False,
    no_history: NoHistory = False,
    verbose: Verbose = False,
) -> None:
    """Chat with a model.

    In a terminal: /help lists the commands; Ctrl-C stops an answer, twice quits; Ctrl-D quits. With -p, or with a
    pipe as stdin, one message is answered: all of stdin is that message. With --json and a pipe, each line of stdin
    is a turn of one conversation.

    Examples:

      edgespec chat

      edgespec chat ~/models/qwen.gguf --system "Answer in French."

      echo "What is a tide?" | edgespec chat

      edgespec chat --json < questions.txt > answers.jsonl
    """
    config = common.load_config(
        model=model, system=system, max_tokens=max_tokens, temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p,
        repeat_penalty=repeat_penalty, seed=seed, drafter=drafter, max_draft=max_draft, threads=threads, n_ctx=ctx,
        kv_type=kv_type, offline=offline, think=think, color=color, verbose=verbose,
    )  # fmt: skip
    common.check_text(config.system, "--system")
    limits = common.limits_of(config, stop)
    interactive = prompt is None and sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        given = None
    elif json and prompt is None:
        given = _lines()
    else:
        given = iter([common.read_prompt(prompt)])

    from edgespec.cli.render import Screen

    screen = Screen(color=config.color, think=config.think, status=interactive and not no_status)
    with common.open_engine(config, screen) as engine:
        from edgespec.chat import Chat
        from edgespec.cli.commands import Desk

        desk = Desk(engine, Chat(engine, limits=limits), screen)
        if given is None:
            code = _talk(desk, config, history=config.history and not no_history, json=json, stats=stats)
        else:
            code = _answer_all(desk, given, json=json, stats=stats)
    if code:
        raise typer.Exit(code)


def _talk(desk: Desk, config: EngineConfig, *, history: bool, json: bool, stats: bool) -> int:
    from edgespec import paths
    from edgespec.cli.commands import completions
    from edgespec.cli.history import History
    from edgespec.cli.lines import open_reader
    from edgespec.cli.repl import Repl

    past = History(paths.state_dir() / "chat_history.jsonl" if history else None)
    reader = open_reader(past.load(), completions)
    engine = desk.engine
    desk.screen.dim(f"{engine.model_name}, {engine.n_ctx} tokens of context, loaded in {engine.load_s:.1f} s; /help helps")
    if config.system:
        desk.screen.dim(f"system: {config.system}")
    return Repl(desk, reader, past, json=json, stats=stats).run()


def _answer_all(desk: Desk, given: Iterator[str], *, json: bool, stats: bool) -> int:
    from edgespec.cli.interrupt import INTERRUPTED
    from edgespec.cli.repl import answer

    for text in given:
        if answer(desk, lambda text=text: desk.chat.ask(text), json=json, stats=stats):  # type: ignore[misc]
            return INTERRUPTED
    return 0


def _lines() -> Iterator[str]:
    """Lines of stdin that are not empty.

    Raises:
        ConfigError: a line is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = common.decode_utf8(line, f"line {number} of stdin").strip()
        if text:
            yield text
