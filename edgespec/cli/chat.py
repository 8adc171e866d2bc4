"""`edgespec chat`: a conversation in the terminal, or one answer in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from edgespec.cli.commands import Desk
    from edgespec.config import EngineConfig
    from edgespec.constraint import Constraint
    from edgespec.interfaces import Limits

CHAT_TOKENS = 1024
"""Longest answer of a chat unless asked otherwise: small models can repeat themselves for ever."""
EPILOG = """\b
Examples:
  edgespec chat
  edgespec chat ~/models/qwen.gguf --system "Answer in French."
  echo "What is a tide?" | edgespec chat
  edgespec chat --json < questions.txt > answers.jsonl
"""

NoStatus = Annotated[bool, typer.Option("--no-status", help="No status line after answers.")]
NoHistory = Annotated[bool, typer.Option("--no-history", help="Do not keep what was typed.")]


def chat(
    model: common.Model = None,
    prompt: common.Prompt = None,
    system: common.System = None,
    json: common.Json = False,
    stats: common.Stats = False,
    max_tokens: common.MaxTokens = None,
    temp: common.Temp = None,
    top_k: common.TopK = None,
    top_p: common.TopP = None,
    min_p: common.MinP = None,
    repeat_penalty: common.RepeatPenalty = None,
    named: common.Set = None,
    seed: common.Seed = None,
    logprobs: common.Logprobs = None,
    stop: common.Stop = None,
    json_schema: common.JsonSchema = None,
    grammar: common.Grammar = None,
    regex: common.Regex = None,
    drafter: common.DrafterName = None,
    max_draft: common.MaxDraft = None,
    threads: common.Threads = None,
    policy: common.Policy = None,
    ctx: common.Ctx = None,
    kv_type: common.KvType = None,
    exact: common.Exact = None,
    kernels: common.Kernels = None,
    learn: common.Learn = None,
    offline: common.Offline = False,
    think: common.Think = None,
    color: common.Color = None,
    no_status: NoStatus = False,
    no_history: NoHistory = False,
    verbose: common.Verbose = False,
) -> None:
    """Chat with a model.

    In a terminal: /help lists the commands; Ctrl-C stops an answer, twice quits; Ctrl-D quits. With -p, or with a
    pipe as stdin, one message is answered: all of stdin is that message. With --json and a pipe, each line of stdin
    is a turn of one conversation.
    """
    common.check_logprobs(logprobs, json=json)
    config = common.load_config(
        named,
        model=model, system=system, max_tokens=max_tokens, temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p,
        repeat_penalty=repeat_penalty, seed=seed, drafter=drafter, max_draft=max_draft, threads=threads,
        logprobs=logprobs, policy=policy, n_ctx=ctx,
        kv_type=kv_type, exact=exact, kernels=kernels, learn=learn, offline=offline, think=think, color=color,
        verbose=verbose,
    )  # fmt: skip
    common.check_text(config.system, "--system")
    limits = common.limits_of(config, stop)
    constraint = common.constraint_of(json_schema, grammar, regex)
    if limits.max_tokens is None:
        limits = replace(limits, max_tokens=CHAT_TOKENS)
    code = _chat(
        config, limits, constraint, prompt,
        json=json, stats=stats, status=not no_status, history=not no_history,
    )  # fmt: skip
    if code:
        raise typer.Exit(code)


def _chat(
    config: EngineConfig,
    limits: Limits,
    constraint: Constraint | None,
    prompt: str | None,
    *,
    json: bool,
    stats: bool,
    status: bool,
    history: bool,
) -> int:
    """Talk, or answer what was given; the exit code."""
    from edgespec.cli.render import Screen

    given = None
    if prompt is not None or sys.stdin is None or not sys.stdin.isatty():
        given = _lines() if json and prompt is None else iter([common.read_prompt(prompt)])
    screen = Screen(color=config.color, think=config.think, status=status and given is None)
    with common.open_engine(config, screen) as engine:
        from edgespec.chat import Chat
        from edgespec.cli.commands import Desk

        limits = common.tuned_limits(limits, engine)
        chat = Chat(engine, limits=limits, constraint=constraint, learn=common.learns(config))
        desk = Desk(engine, chat, screen)
        if given is not None:
            return _answer_all(desk, given, json=json, stats=stats)
        return _talk(desk, config, history=config.history and history, json=json, stats=stats)


def _talk(desk: Desk, config: EngineConfig, *, history: bool, json: bool, stats: bool) -> int:
    from edgespec import paths
    from edgespec.cli.commands import completions
    from edgespec.cli.history import FILE, History
    from edgespec.cli.lines import open_reader
    from edgespec.cli.repl import Repl

    past = History(paths.state_dir() / FILE if history else None)
    reader = open_reader(past.load(), completions)
    engine = desk.engine
    desk.screen.dim(
        f"{engine.model_name}, {engine.n_ctx} tokens of context, {engine.load_s:.1f} s to load; "
        "Ctrl-C stops an answer, /help helps"
    )
    if config.system:
        desk.screen.dim(f"system: {config.system}")
    return Repl(desk, reader, past, json=json, stats=stats).run()


def _answer_all(desk: Desk, given: Iterator[str], *, json: bool, stats: bool) -> int:
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
