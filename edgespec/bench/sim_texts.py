"""Texts that a real model wrote, so that a simulated target can write them again: trace files, and their tokens' bytes.

Of a trace (`edgespec.bench.trace`) the ids of prompt and answer are what counts here. Beside `NAME.jsonl` may stand
`NAME.pieces.json`, an object from token id to its bytes (as Latin-1), by which the drafter tells kinds of tokens apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgespec.bench.trace import Trace, load_traces, save_traces
from edgespec.errors import ConfigError

_BUILTIN = "texts.jsonl"


@dataclass(frozen=True, slots=True)
class Texts:
    """What one model wrote; no prompt and no answer is empty."""

    traces: tuple[Trace, ...]
    pieces: Mapping[int, bytes] | None
    """The bytes of every token that occurs; None: unknown, and then all tokens are of one kind for the drafter."""


def load(path: Path | None = None) -> Texts:
    """Read a file of traces; None reads greedy answers of the default model, which are part of the package.

    Raises:
        ConfigError: a file cannot be read, holds no text, or a line of it is not what it should be.
    """
    if path is None:
        with resources.as_file(resources.files("edgespec.bench")) as folder:
            return load(folder / _BUILTIN)
    # A file may hold the same question in several modes: the text is the same, once is enough.
    traces = {(t.question_id, t.prompt): t for t in load_traces(path) if t.prompt and len(t.answer) > 1}
    if not traces:
        raise ConfigError(f"the traces {path} hold no answer of two tokens or more")
    return Texts(tuple(traces.values()), _load_pieces(path, list(traces.values())))


def save(texts: Texts, path: Path) -> None:
    """Write what `load` reads, without the rounds.

    Raises:
        ConfigError: a file cannot be written.
    """
    save_traces((Trace(t.prompt, t.answer, (), t.question_id, t.group, t.mode) for t in texts.traces), path)
    if texts.pieces is None:
        return
    pieces = {str(token): piece.decode("latin-1") for token, piece in sorted(texts.pieces.items())}
    try:
        _beside(path).write_text(json.dumps(pieces, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {_beside(path)}: {error.strerror or error}") from error


def pieces_of(traces: Iterable[Trace], piece: Callable[[int], bytes]) -> dict[int, bytes]:
    """The bytes of every token of `traces`; `piece` gives those of one."""
    return {token: piece(token) for trace in traces for token in {*trace.prompt, *trace.answer}}


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.pieces.json")


def _load_pieces(path: Path, traces: Iterable[Trace]) -> dict[int, bytes] | None:
    path = _beside(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        pieces = {int(token): str(piece).encode("latin-1") for token, piece in raw.items()}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not an object of token ids and their bytes ({error})") from error
    for trace in traces:
        lacking = {*trace.prompt, *trace.answer} - pieces.keys()
        if lacking:
            raise ConfigError(f"{path}: token {min(lacking)} is missing, which occurs in {trace.question_id}")
    return pieces
