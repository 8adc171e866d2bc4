"""Questions to measure with: JSONL files of a user, or the built-in ones. Knows nothing of models.

A line is one object: `{"question_id": 7, "group": "chat", "turns": ["first user message", ...]}`. Only the first turn
is asked. `max_tokens` may cap the answer of one question. Other keys are allowed and ignored, so that the files of
public benchmarks work as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgespec.errors import ConfigError

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a workload."""

    question_id: str
    group: str
    text: str
    max_tokens: int | None = None


def load(path: Path | None = None) -> tuple[Question, ...]:
    """Read a workload file; None reads the built-in workload.

    Raises:
        ConfigError: the file cannot be read, has no questions, or one of its lines is not a question.
    """
    if path is None:
        text = resources.files("edgespec.bench").joinpath("builtin.jsonl").read_text(encoding="utf-8")
        return parse(text.splitlines(), BUILTIN)
    try:
        return parse(path.read_text(encoding="utf-8").split("\n"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the workload {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the workload {path} is not UTF-8 text (byte {error.start})") from error


def parse(lines: Iterable[str], name: str) -> tuple[Question, ...]:
    """Questions of JSONL `lines`; empty lines are skipped.

    Raises:
        ConfigError: naming the line that is not a question.
    """
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        question = _question(line, where)
        if question.question_id in seen:
            first = seen[question.question_id]
            raise ConfigError(f"{where}: question_id {question.question_id} was already used in line {first}")
        seen[question.question_id] = number
        questions.append(question)
    if not questions:
        raise ConfigError(f"the workload {name} has no questions")
    return tuple(questions)


def select(questions: Sequence[Question], per_group: int | None) -> tuple[Question, ...]:
    """The first `per_group` questions of every group, in file order; None or 0 keeps all."""
    if not per_group:
        return tuple(questions)
    taken: Counter[str] = Counter()
    kept: list[Question] = []
    for question in questions:
        if taken[question.group] < per_group:
            taken[question.group] += 1
            kept.append(question)
    return tuple(kept)


def _question(line: str, where: str) -> Question:
    try:
        row: object = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ConfigError(f'{where}: expected an object with "question_id", "group" and "turns"')
    ident, group, turns, max_tokens = (row.get(key) for key in ("question_id", "group", "turns", "max_tokens"))
    if isinstance(ident, bool) or not isinstance(ident, str | int) or ident == "":
        raise ConfigError(f'{where}: "question_id" must be a number or a text')
    if not isinstance(group, str) or not group.strip():
        raise ConfigError(f'{where}: "group" must be a text')
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ConfigError(f'{where}: "turns" must be a list of texts, the user\'s message first')
    if not turns[0].strip():
        raise ConfigError(f"{where}: the first turn is empty")
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise ConfigError(f'{where}: "max_tokens" must be a whole number of at least 1')
    return Question(str(ident), group.strip(), turns[0], max_tokens)
