"""The slash commands of a chat: what they are called and what they do.

Knows nothing of how lines are read or answers are shown.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import config as configuration
from edgespec.cli.common import check_text, read_text
from edgespec.cli.render import Screen, summary
from edgespec.conversation import Saved
from edgespec.draft import NAMES
from edgespec.errors import ConfigError, EdgespecError
from edgespec.interfaces import Sampling

if TYPE_CHECKING:
    from edgespec.chat import Chat, Turn
    from edgespec.engine import Engine

FILE_BYTES = 2**20
_CONFIGURED = {option.name for option in fields(configuration.EngineConfig)} - {"logprobs"}  # a chat shows none
_SAMPLING = tuple(f.name for f in fields(Sampling) if f.name in _CONFIGURED)
_LIMITS = ("max_tokens", "max_draft")


@dataclass(slots=True)
class Desk:
    """What the commands work on."""

    engine: Engine
    chat: Chat
    screen: Screen
    attached: list[str] = field(default_factory=list)
    """Texts of files for the next message."""
    file: Path | None = None
    """Where the conversation was last saved or loaded."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `run` returns a turn where there is something to answer."""

    usage: str
    help: str
    run: Callable[[Desk, str], Turn | None]


def is_command(text: str) -> bool:
    """Whether a message is a command, known or not; a space before the slash makes it a message."""
    return text.startswith("/")


def execute(desk: Desk, text: str) -> Turn | None:
    """Carry out a command.

    Raises:
        EdgespecError: there is no such command, or it cannot be done; nothing has changed.
    """
    word, _, argument = text[1:].partition(" ")
    if "\n" in word:
        word, _, rest = word.partition("\n")
        argument = f"{rest} {argument}"
    command = COMMANDS.get(word) or ALIASES.get(word)
    if command is None:
        near = difflib.get_close_matches(word, COMMANDS, n=3, cutoff=0.5)
        near += [name for name in COMMANDS if word and name.startswith(word) and name not in near]
        hint = f"did you mean {' or '.join('/' + name for name in near)}?" if near else "/help lists them"
        raise ConfigError(f"unknown command /{word}: {hint} (a space before the slash sends it as a message)")
    return command.run(desk, argument.strip())


def completions(text: str) -> list[str]:
    """What a line may become: commands, option names after /set, drafters, files where a file is wanted."""
    if not text.startswith("/"):
        return []
    word, space, argument = text[1:].partition(" ")
    if not space:
        return [f"/{name}" for name in COMMANDS if name.startswith(word)]
    if word == "set":
        return [f"/set {name}" for name in _settable() if name.startswith(argument)]
    if word == "drafter":
        return [f"/drafter {name}" for name in NAMES if name.startswith(argument)]
    if word in {"file", "load", "save"}:
        return [f"/{word} {name}" for name in _files(argument)]
    return []


def _files(start: str) -> list[str]:
    folder, name = os.path.split(start)
    try:
        entries = sorted(Path(folder or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    found = [entry for entry in entries if entry.name.startswith(name)]
    return [str(Path(folder) / entry.name) + ("/" if entry.is_dir() else "") for entry in found]


def _help(desk: Desk, _argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        desk.screen.line(f"  {command.usage.ljust(width)}  {command.help}")
    desk.screen.line()
    desk.screen.line('  Several lines: put """ before and after, or end a line with \\. Pasted text is one message.')
    desk.screen.line("  Ctrl-C stops an answer, twice quits. Ctrl-D quits. A space before / sends it as a message.")


def _system(desk: Desk, text: str) -> None:
    if not text:
        desk.screen.line(desk.chat.system or "there is no system text; /system TEXT sets one")
        return
    check_text(text, "the system text")
    desk.chat.set_system(None if text == "-" else text)
    desk.screen.dim("system text removed" if text == "-" else "system text set; it applies from the next message on")


def _clear(desk: Desk, _argument: str) -> None:
    n = desk.chat.n_turns
    desk.chat.clear()
    desk.attached.clear()
    desk.screen.dim(f"forgot {_turns(n)}" + ("; the system text stays" if desk.chat.system else ""))


def _retry(desk: Desk, _argument: str) -> Turn:
    return desk.chat.retry()


def _undo(desk: Desk, _argument: str) -> None:
    removed = desk.chat.undo()
    if removed is None:
        raise ConfigError("there is nothing to undo")
    first = removed.strip().split("\n")[0]
    desk.screen.dim(f"forgot: {first[:57] + '...' if len(first) > 60 else first}")


def _save(desk: Desk, name: str) -> None:
    path = Path(_unquoted(name)).expanduser() if name else desk.file
    if path is None:
        raise ConfigError("/save FILE: name a file")
    if path.exists() and not _is_saved(path):
        raise ConfigError(f"{path} exists and is not a saved conversation: choose another name")
    desk.chat.save(path)
    desk.file = path
    desk.screen.dim(f"saved {_turns(desk.chat.n_turns)} to {path}")


def _load(desk: Desk, name: str) -> None:
    if not name:
        raise ConfigError("/load FILE: name a file")
    path = Path(_unquoted(name)).expanduser()
    model = desk.chat.load(path)
    desk.file = path
    desk.attached.clear()
    drafter = f" and the drafter {desk.chat.drafter}" if desk.chat.drafter else ""
    desk.screen.dim(f"loaded {_turns(desk.chat.n_turns)} from {path}, and the sampling options{drafter} saved with it")
    if model != desk.engine.model_name:
        desk.screen.note(f"it was held with {model or 'an unknown model'}, this is {desk.engine.model_name}")


def _file(desk: Desk, name: str) -> None:
    if not name:
        raise ConfigError("/file FILE: name a file")
    if name == "-":
        desk.attached.clear()
        desk.screen.dim("no file goes with the next message")
        return
    path = Path(_unquoted(name)).expanduser()
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file")
    if path.exists() and path.stat().st_size > FILE_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes; at most {FILE_BYTES >> 20} MiB is taken")
    text = read_text(path)
    if not text.strip():
        raise ConfigError(f"{path} is empty")
    n_tokens = len(desk.engine.encode(text))
    if n_tokens >= desk.engine.n_ctx:
        raise ConfigError(f"{path} has {n_tokens} tokens and the context holds {desk.engine.n_ctx}")
    desk.attached.append(f"{path.name}:\n\n{text.rstrip()}")
    desk.screen.dim(f"{path.name} ({n_tokens} tokens) goes with the next message")


def _set(desk: Desk, argument: str) -> None:
    name, _, value = argument.partition(" ")
    name = {"temp": "temperature"}.get(name.replace("-", "_"), name.replace("-", "_"))
    if not name:
        for option in _settable():
            desk.screen.line(f"  {option.ljust(18)} {_value(desk, option)}")
        return
    if name not in _settable():
        if name in {f.name for f in fields(configuration.EngineConfig)}:
            raise ConfigError(f"{name} cannot be changed in a chat: restart edgespec with it")
        near = difflib.get_close_matches(name, _settable(), n=3, cutoff=0.5)
        raise ConfigError(f"{name} is not an option: " + (f"did you mean {' or '.join(near)}?" if near else "see /set"))
    if value.strip():
        checked = configuration.check(name, value.strip(), name)
        if name in _SAMPLING:
            desk.chat.sampling = replace(desk.chat.sampling, **{name: checked})  # type: ignore[arg-type]
        elif name == "think":
            desk.screen.think = str(checked)
        else:
            desk.chat.limits = replace(desk.chat.limits, **{name: checked})  # type: ignore[arg-type]
    desk.screen.line(f"  {name} = {_value(desk, name)}")


def _stats(desk: Desk, _argument: str) -> None:
    chat = desk.chat
    if chat.last is None:
        raise ConfigError("there is no answer yet")
    for line in summary(chat.last):
        desk.screen.line(line)
    used = chat.last.usage.prompt_tokens + chat.last.usage.completion_tokens
    dropped = f"; {_turns(chat.n_dropped)} no longer sent" if chat.n_dropped else ""
    desk.screen.line(f"context   {used} of {desk.engine.n_ctx} tokens{dropped}")


def _drafter(desk: Desk, name: str) -> None:
    if name and name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown drafter {name!r}: {hint}choose one of {', '.join(NAMES)}")
    if name:
        desk.chat.drafter = name
    desk.screen.line(f"  drafter = {desk.chat.drafter or desk.engine.config.drafter}")


def _quit(desk: Desk, _argument: str) -> None:
    desk.done = True


def _settable() -> Sequence[str]:
    return (*_SAMPLING, *_LIMITS, "think")


def _value(desk: Desk, name: str) -> object:
    if name == "think":
        return desk.screen.think
    value = getattr(desk.chat.sampling if name in _SAMPLING else desk.chat.limits, name)
    return "auto" if value is None else value


def _is_saved(path: Path) -> bool:
    """Whether a file holds a conversation, so that it may be replaced; an empty one may be as well."""
    try:
        text = path.read_text(encoding="utf-8")
        return not text or bool(Saved.from_json(text))
    except (OSError, UnicodeDecodeError, EdgespecError):
        return False


def _unquoted(name: str) -> str:
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] and name[0] in "'\"" else name


def _turns(n: int) -> str:
    return "1 turn" if n == 1 else f"{n} turns"


COMMANDS = {
    "help": Command("/help", "show this", _help),
    "system": Command("/system [TEXT]", "show or set the system text; - removes it", _system),
    "clear": Command("/clear", "forget the conversation", _clear),
    "retry": Command("/retry", "answer the last message again", _retry),
    "undo": Command("/undo", "forget the last message and its answer", _undo),
    "save": Command("/save [FILE]", "save the conversation", _save),
    "load": Command("/load FILE", "go on with a saved conversation", _load),
    "file": Command("/file FILE", "add a file's text to the next message; - takes all out", _file),
    "set": Command("/set [NAME VALUE]", "show or change options", _set),
    "stats": Command("/stats", "what the last answer cost and drafting did", _stats),
    "drafter": Command("/drafter [NAME]", "show or choose what guesses tokens ahead", _drafter),
    "quit": Command("/quit", "leave", _quit),
}
ALIASES = {"exit": COMMANDS["quit"], "bye": COMMANDS["quit"], "?": COMMANDS["help"]}
