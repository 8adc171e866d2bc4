"""`edgespec run`: one prompt, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli import common
from edgespec.cli.interrupt import INTERRUPTED, Interrupts
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.answer import Stream
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig
    from edgespec.constraint import Constraint
    from edgespec.engine import Engine
    from edgespec.interfaces import Limits, Result

EPILOG = """\b
Examples:
  edgespec run -p "Name three rivers."
  edgespec run --file notes.txt --system "Summarise." --max-tokens 200
  git diff | edgespec run --json | jq -r .text
  edgespec run --file letter.txt --json-schema address.json
"""

File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="F", help="Read the prompt from a file; - is stdin.", show_default=False),
]
Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the model's chat template.")]


def run(
    model: common.Model = None,
    prompt: common.Prompt = None,
    file: File = None,
    system: common.System = None,
    raw: Raw = False,
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
    verbose: common.Verbose = False,
) -> None:
    """Answer one prompt: from -p, from a file, or from stdin.

    Only the answer goes to stdout. Ctrl-C keeps what was written and ends with exit code 130.
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
    if raw and system is not None:
        raise ConfigError("--system needs the chat template, which --raw leaves out: put the text into the prompt")
    limits = common.limits_of(config, stop)
    constraint = common.constraint_of(json_schema, grammar, regex)
    text = common.read_prompt(prompt, file, raw=raw)
    if _run(config, limits, constraint, text, raw=raw, json=json, stats=stats):
        raise typer.Exit(INTERRUPTED)


def _run(
    config: EngineConfig,
    limits: Limits,
    constraint: Constraint | None,
    text: str,
    *,
    raw: bool,
    json: bool,
    stats: bool,
) -> bool:
    """Answer, and tell whether Ctrl-C ended it."""
    from edgespec.cli.render import Screen, summary

    screen = Screen(color=config.color, think=config.think)
    with common.open_engine(config, screen) as engine:
        limits = common.tuned_limits(limits, engine)
        result = _answer(engine, _prompt(engine, config, text, raw=raw), limits, constraint, screen, raw=raw, json=json)
        for line in summary(result) if stats else ():
            screen.line(line)
        if result.finish_reason == "length":
            broken = ", before its form was complete" if constraint is not None else ""
            screen.note(f"cut off after {result.usage.completion_tokens} tokens{broken}")
    return result.finish_reason == "cancelled"


def _prompt(engine: Engine, config: EngineConfig, text: str, *, raw: bool) -> str:
    if raw:
        return text
    from edgespec.interfaces import Message

    system = [Message("system", config.system)] if config.system else []
    return engine.render([*system, Message("user", text)])


def _answer(
    engine: Engine, prompt: str, limits: Limits, constraint: Constraint | None, screen: Screen, *, raw: bool, json: bool
) -> Result:
    from edgespec.think import opens_thinking

    opened = not raw and opens_thinking(prompt)
    with Interrupts() as ctrl_c:
        learn = common.learns(engine.config)
        stream = engine.stream(engine.prompt(prompt), limits=limits, constraint=constraint, learn=learn)
        ctrl_c.stops(stream.cancel)
        if json:
            return _as_json(stream, screen, opened=opened)
        writer = screen.answer(opened=opened, exact=raw)
        for chunk in stream:
            writer.push(chunk.text)
        writer.finish(end_line=not raw or screen.tty_out)
    return stream.result


def _as_json(stream: Stream, screen: Screen, *, opened: bool) -> Result:
    from edgespec.cli.render import print_json, result_json, without_thinking

    for _ in stream:
        pass
    result = stream.result
    print_json(result_json(without_thinking(result, opened=opened) if screen.think == "hide" else result))
    return result
