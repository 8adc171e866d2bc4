"""Answers round by round, as files: what was proposed, verified and right. For the ceiling and for the simulator.

A file has one object a line: `{"schema": 1, "question_id", "group", "mode", "prompt": [ids], "answer": [ids],
"rounds": [...]}`; a round has the fields of `RoundTrace`, of which those that have their default are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from edgespec.core.trace import RoundTrace
from edgespec.errors import ConfigError
from edgespec.interfaces import Chunk, Draft, Drafter, Limits, Result, Sampling

__all__ = ["RoundTrace", "Trace", "load_traces", "n_right", "save_traces", "trace_run"]

SCHEMA = 1
_DRAFT = tuple(field.name for field in fields(Draft))


class TracedStream(Protocol):
    """An answer in the making that tells its rounds."""

    def record(self) -> list[RoundTrace]:
        """A list that takes up each round of decoding from now on."""
        ...

    def __iter__(self) -> Iterator[Chunk]:
        """Pieces as they come."""
        ...

    @property
    def result(self) -> Result:
        """The finished answer."""
        ...


class TracedEngine(Protocol):
    """What making a trace needs of an engine."""

    def stream(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: str | Drafter | None = None,
    ) -> TracedStream:
        """Begin an answer in a fresh session."""
        ...


@dataclass(frozen=True, slots=True)
class Trace:
    """One answer. `position - len(prompt)` of a round is the index in `answer` of the first token it made."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """All tokens of the answer; the first came with the last pass over the prompt, the others from the rounds."""
    rounds: tuple[RoundTrace, ...]
    question_id: str = ""
    group: str = ""
    mode: str = ""

    def n_right(self, number: int) -> int:
        """How many leading tokens of the proposal of round `number` are the text, verified or not."""
        found = self.rounds[number]
        return n_right(found.proposal, self.answer[found.position - len(self.prompt) :])


def n_right(proposal: Draft, text: Sequence[int]) -> int:
    """How many leading tokens of a chain are those of `text`, which follows where it was made."""
    n = 0
    for token, wanted in zip(proposal.tokens, text, strict=False):  # either may be the shorter one
        if token != wanted:
            break
        n += 1
    return n


def trace_run(
    engine: TracedEngine,
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    *,
    drafter: str | Drafter | None = None,
    question_id: str = "",
    group: str = "",
    mode: str = "",
) -> Trace:
    """Write one answer in a fresh session and keep its rounds.

    Args:
        engine: writes it.
        prompt: token ids.
        sampling: how tokens are drawn; None: as configured.
        limits: when to end; None: as configured.
        drafter: a name, or an object; None: as configured.
        question_id: of the workload, to be found again.
        group: of the workload.
        mode: what the run is called.

    Raises:
        EdgespecError: the engine refuses the request, or its target a batch.
    """
    stream = engine.stream(prompt, sampling, limits, drafter=drafter)
    rounds = stream.record()
    for _ in stream:
        pass
    return Trace(tuple(prompt), stream.result.tokens, tuple(rounds), question_id, group, mode)


def save_traces(traces: Iterable[Trace], path: Path) -> None:
    """Write traces as JSON lines.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = [json.dumps(_to_json(trace), separators=(",", ":")) for trace in traces]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def load_traces(path: Path) -> tuple[Trace, ...]:
    """Read what `save_traces` wrote; empty lines are skipped.

    Raises:
        ConfigError: the file cannot be read, or a line of it is no trace; the line is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the traces {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: no trace ({type(error).__name__}: {error})") from error
    return tuple(found)


def _to_json(trace: Trace) -> dict[str, object]:
    rounds = []
    for found in trace.rounds:
        row = asdict(found)
        rounds.append({f.name: row[f.name] for f in fields(RoundTrace) if getattr(found, f.name) != f.default})
    head = {"question_id": trace.question_id, "group": trace.group, "mode": trace.mode}
    return {"schema": SCHEMA, **head, "prompt": trace.prompt, "answer": trace.answer, "rounds": rounds}


def _from_json(row: Mapping[str, object]) -> Trace:
    if row["schema"] != SCHEMA:
        raise ValueError(f"schema {row['schema']!r}, this edgespec reads {SCHEMA}")
    rounds = row["rounds"]
    if not isinstance(rounds, list):
        raise TypeError("rounds must be a list")
    texts = (str(row[key]) for key in ("question_id", "group", "mode"))
    return Trace(_ids(row["prompt"]), _ids(row["answer"]), tuple(map(_round, rounds)), *texts)


def _round(row: Mapping[str, object]) -> RoundTrace:
    found = dict(row)
    found["tokens"] = _ids(row["tokens"])
    found.setdefault("drafter", None)
    if "proposal" in row:
        found["proposal"] = _draft(row["proposal"])
    if "others" in row:
        others = row["others"]
        if not isinstance(others, list):
            raise TypeError("others must be a list")
        found["others"] = tuple((str(name), _draft(draft)) for name, draft in others)
    return RoundTrace(**found)  # type: ignore[arg-type]  # names are checked by the call; numbers are taken as they are


def _draft(row: object) -> Draft:
    if not isinstance(row, dict):
        raise TypeError("a proposal must be an object")
    return Draft(*(tuple(row[name]) for name in _DRAFT))


def _ids(row: object) -> tuple[int, ...]:
    if not isinstance(row, list) or not all(type(token) is int for token in row):
        raise TypeError("token ids must be a list of whole numbers")
    return tuple(row)
