"""What chat and run share: the types of their options, and reading a prompt. Imports nothing heavy.

Numbers are taken as text and checked by `edgespec.config`, which says in one line what would have been right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.cli.interrupt import INTERRUPTED
from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig
    from edgespec.engine import Engine
    from edgespec.interfaces import Limits

BROKEN_PIPE = 141
"""Exit code where the reader of stdout went away, as a shell reports it."""
STDIN = "-"
PROMPT_BYTES = 64 * 2**20
"""Longer prompts fit no context; reading stops here."""
_MODEL, _OUTPUT, _SAMPLING, _ENGINE = "Model", "Output", "Sampling", "Engine"

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", show_default=False,
        help="A GGUF file, a name that `edgespec models list` shows, or hf:owner/repo/file.gguf. "
        "Left out: the default model.",
    ),
]  # fmt: skip
Prompt = Annotated[str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt.", show_default=False)]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System text.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object an answer, and nothing else, on stdout.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print what drafting did after each answer (on stderr).")]
Think = Annotated[
    str | None,
    typer.Option(
        "--think", metavar="dim|hide|show", show_default=False, rich_help_panel=_OUTPUT,
        help="What becomes of <think> blocks; dim (the default) means hidden where stdout is not a terminal. "
        "--json keeps them unless this is hide.",
    ),
]  # fmt: skip
Color = Annotated[
    str | None,
    typer.Option(
        "--color", metavar="auto|always|never", help="Colour; NO_COLOR is obeyed.", show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]  # fmt: skip
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show llama.cpp's own log (on stderr).", rich_help_panel=_OUTPUT)
]


def _number(flag: str, text: str, panel: str, metavar: str = "N") -> typer.models.OptionInfo:
    option = typer.Option(flag, metavar=metavar, help=text, show_default=False, rich_help_panel=panel)
    assert isinstance(option, typer.models.OptionInfo)
    return option


MaxTokens = Annotated[str | None, _number("--max-tokens", "Longest answer; auto: all the context.", _SAMPLING)]
Temp = Annotated[str | None, _number("--temp", "Temperature, 0 to 5; 0 takes the likeliest token.", _SAMPLING)]
TopK = Annotated[str | None, _number("--top-k", "Keep the K likeliest tokens; 0 keeps all.", _SAMPLING, "K")]
TopP = Annotated[str | None, _number("--top-p", "Keep the likeliest tokens up to this share.", _SAMPLING, "P")]
MinP = Annotated[
    str | None, _number("--min-p", "Keep tokens at least this likely beside the likeliest.", _SAMPLING, "P")
]
RepeatPenalty = Annotated[str | None, _number("--repeat-penalty", "Above 1 makes repetition rarer.", _SAMPLING, "X")]
Seed = Annotated[str | None, _number("--seed", "Number of the draw: the same seed gives the same text.", _SAMPLING)]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", help="End the answer before this text; may be given several times.",
        show_default=False, rich_help_panel=_SAMPLING,
    ),
]  # fmt: skip
DrafterName = Annotated[
    str | None,
    typer.Option(
        "--drafter", metavar="auto|none|ngram", help="What guesses tokens ahead.", show_default=False,
        rich_help_panel=_ENGINE,
    ),
]  # fmt: skip
MaxDraft = Annotated[str | None, _number("--max-draft", "Most tokens guessed at a time, 0 to 63.", _ENGINE)]
Threads = Annotated[str | None, _number("--threads", "Threads of the model, or auto.", _ENGINE)]
Ctx = Annotated[str | None, _number("--ctx", "Tokens the context holds; auto: by the free memory.", _ENGINE)]
KvType = Annotated[
    str | None,
    typer.Option(
        "--kv-type", metavar="f16|q8_0|bf16|f32", help="Type of the KV cache.", show_default=False,
        rich_help_panel=_ENGINE,
    ),
]  # fmt: skip
Offline = Annotated[bool, typer.Option("--offline", help="Never fetch a model.", rich_help_panel=_ENGINE)]


@contextmanager
def exits() -> Iterator[None]:
    """End as documented where the reader of stdout is gone (141) or Ctrl-C was pressed (130): quietly."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered must not be written when Python closes the stream.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        sys.stderr.write("\n" if sys.stderr.isatty() else "")
        raise typer.Exit(INTERRUPTED) from None


def load_config(**flags: object) -> EngineConfig:
    """The configuration with these flags in force; None and False mean not given.

    Raises:
        ConfigError: a flag, variable or file says something that is not an option.
    """
    from edgespec import config
    from edgespec.draft import NAMES

    found = config.load({name: None if value is False else value for name, value in flags.items()}).config
    if found.drafter not in NAMES:
        raise ConfigError(f"unknown drafter {found.drafter!r}: choose one of {', '.join(NAMES)}")
    return found


def limits_of(config: EngineConfig, stop: list[str] | None) -> Limits:
    """The limits of an answer.

    Raises:
        ConfigError: a stop text is empty.
    """
    from edgespec.interfaces import Limits

    if stop and "" in stop:
        raise ConfigError("--stop must be a text that is not empty")
    return Limits(config.max_tokens, stop=tuple(stop or ()), max_draft=config.max_draft)


def open_engine(config: EngineConfig, screen: Screen) -> Engine:
    """Load the model, saying so on a terminal, and show what there is to know about it.

    Raises:
        EdgespecError: it cannot be loaded.
    """
    screen.wait(f"loading {config.model} ...")
    from edgespec.engine import Engine

    def progress(done: int, total: int | None) -> None:
        share = f"{100 * done // total} % of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"
        screen.wait(f"fetching {config.model}: {share}")

    try:
        engine = Engine.open(config.model, config, progress=progress)
    finally:
        screen.ready()
    for note in engine.notes:
        screen.note(note)
    return engine


def read_prompt(prompt: str | None, file: str | None = None, *, raw: bool = False) -> str:
    """The prompt from -p, --file, or stdin; without its last line end unless it is `raw`.

    Raises:
        ConfigError: there is none, it is empty, it is not UTF-8, or it cannot be read.
    """
    if prompt is not None and file is not None:
        raise ConfigError("give the prompt with -p or with --file, not both")
    if prompt is not None:
        text = _check_argument(prompt, "-p")
    elif file is not None and file != STDIN:
        text = read_text(Path(file))
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise ConfigError("no prompt: give it with -p TEXT, --file FILE, or through a pipe")
    else:
        text = decode_utf8(sys.stdin.buffer.read(PROMPT_BYTES + 1), "stdin")
    if not raw:
        text = text.removesuffix("\n").removesuffix("\r")
    if not (text if raw else text.strip()):
        raise ConfigError("the prompt is empty")
    return text


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(PROMPT_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # also a null byte in the name, or a home nobody has
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return decode_utf8(data, str(path))


def decode_utf8(data: bytes, where: str) -> str:
    """Text from bytes; a byte order mark is dropped.

    Raises:
        ConfigError: too many bytes, or not UTF-8; the offset of the first wrong byte is named.
    """
    if len(data) > PROMPT_BYTES:
        raise ConfigError(f"{where}: more than {PROMPT_BYTES >> 20} MiB; no context holds that")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; convert it, "
            "for example with iconv -f latin1 -t utf-8"
        ) from None


def check_text(text: str | None, where: str) -> None:
    """Refuse an argument that was not UTF-8 on the command line.

    Raises:
        ConfigError: the offset of the first wrong byte is named.
    """
    if text is not None:
        _check_argument(text, where)


def _check_argument(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        offset = len(text[: error.start].encode("utf-8"))
        raise ConfigError(f"{where} is not UTF-8 (byte at offset {offset})") from None
    return text
