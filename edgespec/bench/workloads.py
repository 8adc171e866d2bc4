"""Questions to measure with: the built-in ones, files of a user, or the user's own chats. Knows nothing of models.

A line is one object: `{"question_id": 7, "group": "chat", "turns": ["first user message", ...]}`. Only the first turn
is asked. `max_tokens` may cap the answer of one question. Other keys are allowed and ignored, so that the files of
public benchmarks work as they are. A conversation that `/save` wrote gives a question for each of its turns, asked
as it was then: with all that was said before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgespec.conversation import FORMAT, Saved, as_messages
from edgespec.errors import ConfigError
from edgespec.interfaces import Message

BUILTIN = "builtin"
TYPED = "typed"
"""Group of the prompts that were typed into chats."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a workload."""

    question_id: str
    group: str
    text: str
    max_tokens: int | None = None
    before: tuple[Message, ...] = ()
    """What was said before it, system message included."""


def load(path: Path | None = None) -> tuple[Question, ...]:
    """Read a workload file or a saved conversation; None reads the built-in workload.

    Raises:
        ConfigError: the file cannot be read, has no questions, or one of its lines is not a question.
    """
    if path is None:
        text = resources.files("edgespec.bench").joinpath("builtin.jsonl").read_text(encoding="utf-8")
        return parse(text.splitlines(), BUILTIN)
    try:
        text = path.read_text(encoding="utf-8")
        return saved(text, str(path), path.stem) if _is_saved(text) else parse(text.split("\n"), str(path))
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


def saved(text: str, name: str, group: str) -> tuple[Question, ...]:
    """The user's turns of a saved conversation, each after all that was said before it.

    Args:
        text: the file.
        name: of the file, for messages.
        group: what the questions are called.

    Raises:
        ConfigError: it is no saved conversation, or nobody said anything in it.
    """
    try:
        chat = Saved.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    found = []
    for index, exchange in enumerate(chat.exchanges):
        if exchange.user.strip():
            before = tuple(as_messages(chat.system, chat.exchanges[:index]))
            found.append(Question(f"{group}-{index + 1}", group, exchange.user, before=before))
    if not found:
        raise ConfigError(f"the conversation {name} has no questions")
    return tuple(found)


def typed(prompts: Sequence[str]) -> tuple[Question, ...]:
    """Prompts that were typed into chats, newest first, each once and asked alone; commands are left out.

    `prompts` are oldest first, as `History.load` gives them.
    """
    kept = dict.fromkeys(text.strip() for text in reversed(prompts) if text.strip() and not text.startswith("/"))
    return tuple(Question(f"{TYPED}-{number}", TYPED, text) for number, text in enumerate(kept, 1))


def together(parts: Iterable[Sequence[Question]]) -> tuple[Question, ...]:
    """Several workloads as one.

    Raises:
        ConfigError: two questions have the same id.
    """
    questions = tuple(question for part in parts for question in part)
    twice = [ident for ident, n in Counter(question.question_id for question in questions).items() if n > 1]
    if twice:
        raise ConfigError(f"question_id {twice[0]} is in more than one workload")
    return questions


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


def _is_saved(text: str) -> bool:
    """Whether a file is a saved conversation rather than one object a line."""
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("format") == FORMAT


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
    try:
        f"{ident}{group}{turns[0]}".encode()
    except UnicodeEncodeError as error:  # found out before the measuring, not when the report is written
        raise ConfigError(f"{where}: a text has half a character (a lone surrogate)") from error
    if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1):
        raise ConfigError(f'{where}: "max_tokens" must be a whole number of at least 1')
    return Question(str(ident), group.strip(), turns[0], max_tokens)
