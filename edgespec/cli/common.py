"""What chat and run share: the types of their options, and reading a prompt. Imports nothing heavy.

Numbers are taken as text and checked by `edgespec.config`, which says in one line what would have been right.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.errors import ConfigError

if TYPE_CHECKING:
    from edgespec.cli.render import Screen
    from edgespec.config import EngineConfig
    from edgespec.constraint import Constraint
    from edgespec.engine import Engine
    from edgespec.interfaces import Limits

STDIN = "-"
PROMPT_BYTES = 64 * 2**20
"""Longer prompts fit no context; reading stops here."""

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        show_default=False,
        help="A GGUF file, a name that `edgespec models list` shows, or hf:owner/repo/file.gguf. "
        "Left out: the default model.",
    ),
]


def _option(*names: str, metavar: str, text: str) -> typer.models.OptionInfo:
    option = typer.Option(*names, metavar=metavar, help=text, show_default=False)
    assert isinstance(option, typer.models.OptionInfo)  # typer declares Any
    return option


Prompt = Annotated[str | None, _option("--prompt", "-p", metavar="TEXT", text="The prompt.")]
System = Annotated[str | None, _option("--system", metavar="TEXT", text="System text.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object an answer, and nothing else, on stdout.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print what drafting did after each answer (on stderr).")]
Think = Annotated[
    str | None,
    _option(
        "--think",
        metavar="dim|hide|show",
        text="What becomes of <think> blocks; dim (the default) hides them where stdout is not a terminal. "
        "--json keeps them unless this is hide.",
    ),
]
Color = Annotated[str | None, _option("--color", metavar="auto|always|never", text="Colour; NO_COLOR is obeyed.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show llama.cpp's own log (on stderr).")]
MaxTokens = Annotated[
    str | None,
    _option("--max-tokens", metavar="N", text="Longest answer; auto: 1024 in a chat, else until the context is full."),
]
Temp = Annotated[str | None, _option("--temp", metavar="T", text="Temperature, 0 to 5; 0 takes the likeliest token.")]
TopK = Annotated[str | None, _option("--top-k", metavar="K", text="Keep the K likeliest tokens; 0 keeps all.")]
TopP = Annotated[str | None, _option("--top-p", metavar="P", text="Keep the likeliest tokens up to this share.")]
MinP = Annotated[
    str | None, _option("--min-p", metavar="P", text="Keep tokens at least this likely beside the likeliest.")
]
RepeatPenalty = Annotated[str | None, _option("--repeat-penalty", metavar="X", text="Above 1 makes repetition rarer.")]
Set = Annotated[
    list[str] | None,
    _option(
        "--set",
        metavar="NAME=VALUE",
        text="Any option of `edgespec config show`, for example xtc_probability=0.5; may be given several times.",
    ),
]
Logprobs = Annotated[
    str | None,
    _option("--logprobs", metavar="N", text="With --json: log-probabilities of each token and of the N likeliest."),
]
Seed = Annotated[
    str | None, _option("--seed", metavar="N", text="Number of the draw: the same seed gives the same text.")
]
Stop = Annotated[
    list[str] | None,
    _option("--stop", metavar="TEXT", text="End the answer before this text; may be given several times."),
]
JsonSchema = Annotated[
    str | None,
    _option("--json-schema", metavar="FILE|JSON", text="Answer with JSON that is valid under this JSON schema."),
]
Grammar = Annotated[
    str | None,
    _option("--grammar", metavar="FILE", text="Answer with a text of this grammar, in llama.cpp's notation."),
]
Regex = Annotated[
    str | None, _option("--regex", metavar="RE", text="Answer with a text that matches this expression as a whole.")
]
DrafterName = Annotated[
    str | None, _option("--drafter", metavar="auto|none|ngram|store|onnx", text="What guesses tokens ahead.")
]
MaxDraft = Annotated[str | None, _option("--max-draft", metavar="N", text="Most tokens guessed at a time, 0 to 63.")]
Threads = Annotated[str | None, _option("--threads", metavar="N", text="Threads of the model, or auto.")]
Policy = Annotated[
    str | None,
    _option("--policy", metavar="fast|balanced|cool", text="In heat: speed, no throttling, or saved energy."),
]
Ctx = Annotated[str | None, _option("--ctx", metavar="N", text="Tokens the context holds; auto: by the free memory.")]
KvType = Annotated[
    str | None, _option("--kv-type", metavar="f16|q8_0|bf16|f32", text="Type of the KV cache; f16/bf16: of K and of V.")
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        show_default=False,
        help="Keep to what `edgespec certify` found to give the text of plain decoding, token for token. "
        "Left out: where that costs at most 2 %.",
    ),
]
Kernels = Annotated[
    str | None,
    _option("--kernels", metavar="auto|off", text="off: ggml's own kernels in place of edgespec's for cheap drafts."),
]
Learn = Annotated[
    bool | None,
    typer.Option(
        "--learn/--no-learn",
        show_default=False,
        help="Whether what is said is kept, on this machine only, to draft from it later; left out: it is. "
        "`edgespec drafter forget` deletes it.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Never fetch a model.")]


_TWO_WAY = ("exact", "learn")
"""Switches of which both ways can be given."""


def load_config(named: list[str] | None = None, **flags: object) -> EngineConfig:
    """The configuration with these flags in force; None and False mean not given. `named` are those of --set.

    Raises:
        ConfigError: a flag, variable or file says something that is not an option.
    """
    from edgespec import config
    from edgespec.request import check_drafter

    for item in named or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, not {item!r}")
        if flags.get(name) not in (None, False):
            raise ConfigError(f"--set {name} says again what another flag says: give one of them")
        flags[name] = config.check(name, value, f"--set {name}")
    given = {name: None if value is False and name not in _TWO_WAY else value for name, value in flags.items()}
    found = config.load(given).config
    check_drafter(found.drafter)
    return found


def check_logprobs(logprobs: str | None, *, json: bool) -> None:
    """Refuse log-probabilities that would be shown nowhere.

    Raises:
        ConfigError: --json is missing.
    """
    if logprobs is not None and not json:
        raise ConfigError("--logprobs are printed with --json only")


def learns(config: EngineConfig) -> bool:
    """Whether what is said is kept to draft from it later; not where nothing drafts."""
    return config.learn and config.drafter != "none"


def limits_of(config: EngineConfig, stop: list[str] | None) -> Limits:
    """The limits of an answer.

    Raises:
        ConfigError: a stop text is empty.
    """
    from edgespec.interfaces import Limits

    if stop and "" in stop:
        raise ConfigError("--stop must be a text that is not empty")
    return Limits(config.max_tokens, stop=tuple(stop or ()), max_draft=config.max_draft)


def tuned_limits(limits: Limits, engine: Engine) -> Limits:
    """The limits with the longest draft of the engine, which knows what is tuned."""
    from dataclasses import replace

    return replace(limits, max_draft=engine.config.max_draft)


def constraint_of(json_schema: str | None, grammar: str | None, regex: str | None) -> Constraint | None:
    """What the answers must look like, by the one of these options that was given.

    Raises:
        ConfigError: more than one was given, or it cannot be read, understood or guaranteed.
    """
    if sum(option is not None for option in (json_schema, grammar, regex)) > 1:
        raise ConfigError("give one of --json-schema, --grammar and --regex")
    from edgespec.constraint import Constraint

    if json_schema is not None:
        check_text(json_schema, "--json-schema")
        inline = not json_schema.strip() or json_schema.lstrip().startswith(("{", "[", "true", "false"))
        return Constraint.json_schema(json_schema if inline else _read_regular(Path(json_schema)))
    if grammar is not None:
        return Constraint(_read_regular(Path(grammar)))
    if regex is not None:
        check_text(regex, "--regex")
        return Constraint.regex(regex)
    return None


def open_engine(config: EngineConfig, screen: Screen, n_sessions: int = 1) -> Engine:
    """Load the model, saying so on a terminal, and show what there is to know about it; see `Engine.open`.

    Raises:
        EdgespecError: it cannot be loaded.
    """
    screen.wait(f"loading {config.model} ...")
    from edgespec.cli.progress import DownloadLine
    from edgespec.engine import Engine

    with DownloadLine(config.model) as line:
        try:
            engine = Engine.open(config.model, config, progress=line.update, n_sessions=n_sessions)
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


def _read_regular(path: Path) -> str:
    """The text of a regular file; a pipe nobody writes to would be waited for without an end.

    Raises:
        ConfigError: it is something else, or as `read_text`.
    """
    with contextlib.suppress(RuntimeError):  # a home nobody has: `read_text` says so
        path = path.expanduser()
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    return read_text(path)


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
