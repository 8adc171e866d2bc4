"""Workload files: what is accepted, and the line that is named when something is not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from edgespec.bench import workloads
from edgespec.conversation import Exchange, Saved
from edgespec.errors import ConfigError
from edgespec.interfaces import Message

GOOD = '{"question_id": 1, "group": "chat", "turns": ["Hello?", "And then?"], "category": "ignored"}'


def test_a_file_of_questions(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(
        f'{GOOD}\n\n{{"question_id": "b", "group": "copy", "turns": ["x\u2028y"], "max_tokens": 8}}\n', encoding="utf-8"
    )
    first, second = workloads.load(path)
    assert (first.question_id, first.group, first.text, first.max_tokens) == ("1", "chat", "Hello?", None)
    assert second.text == "x\u2028y"  # a line separator inside a text is no line end of the file
    assert second.max_tokens == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object"),
        ('{"group": "g", "turns": ["t"]}', "question_id"),
        ('{"question_id": true, "group": "g", "turns": ["t"]}', "question_id"),
        ('{"question_id": 2, "group": " ", "turns": ["t"]}', "group"),
        ('{"question_id": 2, "group": "g", "turns": []}', "turns"),
        ('{"question_id": 2, "group": "g", "turns": "t"}', "turns"),
        ('{"question_id": 2, "group": "g", "turns": [5]}', "turns"),
        ('{"question_id": 2, "group": "g", "turns": ["  "]}', "empty"),
        ('{"question_id": 2, "group": "g", "turns": ["t"], "max_tokens": 0}', "max_tokens"),
        ('{"question_id": 1, "group": "g", "turns": ["t"]}', "already used in line 1"),
        ('{"question_id": 2, "group": "\\ud800", "turns": ["t"]}', "half a character"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"w, line 3: .*{message}"):
        workloads.parse([GOOD, "", line], "w")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        workloads.load(tmp_path / "missing.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"question_id": "\xe9"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        workloads.load(tmp_path / "latin.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="no questions"):
        workloads.load(tmp_path / "empty.jsonl")


def test_the_first_of_each_group() -> None:
    rows = [json.dumps({"question_id": i, "group": "ab"[i % 2], "turns": ["t"]}) for i in range(6)]
    questions = workloads.parse(rows, "w")
    assert [q.question_id for q in workloads.select(questions, 2)] == ["0", "1", "2", "3"]
    assert workloads.select(questions, 0) == questions


def test_the_built_in_workload() -> None:
    questions = workloads.load()
    groups = Counter(q.group for q in questions)
    assert set(groups) == {
        "chat", "code_edit", "summary", "rag", "json_extract", "tool_call", "copy", "chat_other", "one_word",
    }  # fmt: skip
    assert min(groups.values()) >= 5
    assert len({q.text for q in questions}) == len(questions)
    assert all(len(q.text.split()) >= 60 for q in questions if q.group == "copy")


def test_a_saved_conversation_is_asked_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    exchanges = (Exchange("Hi?", "Hello."), Exchange("  ", ""), Exchange("And now?", "Now."))
    path.write_text(Saved(system="Be brief.", exchanges=exchanges).to_json(), encoding="utf-8")
    first, second = workloads.load(path)
    assert (first.question_id, first.group, first.text) == ("talk-1", "talk", "Hi?")
    assert first.before == (Message("system", "Be brief."),)
    assert (second.question_id, second.text) == ("talk-3", "And now?")
    assert second.before == (
        Message("system", "Be brief."), Message("user", "Hi?"), Message("assistant", "Hello."), Message("user", "  "),
        Message("assistant", ""),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Saved().to_json(), "has no questions"),
        (Saved(exchanges=(Exchange(" "),)).to_json(), "has no questions"),
        ('{"format": "edgespec-chat", "version": 99}', "talk.json: saved as version 99"),
        ('{"format": "edgespec-chat", "version": 1, "messages": 3}', "talk.json: .*must be a list"),
        ('{"format": "another"}', "line 1"),
    ],
)
def test_conversations_that_are_none(body: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(body, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        workloads.load(path)


def test_what_was_typed_is_asked_once_newest_first() -> None:
    found = workloads.typed(["old", "again", "/save x", " ", "new\nlines", "again"])
    assert [(q.question_id, q.group, q.text) for q in found] == [
        ("typed-1", "typed", "again"), ("typed-2", "typed", "new\nlines"), ("typed-3", "typed", "old"),
    ]  # fmt: skip
    assert workloads.typed(["/help"]) == ()


def test_several_workloads_are_one() -> None:
    one, two = workloads.parse([GOOD], "a"), workloads.typed(["x"])
    assert workloads.together([one, two]) == (*one, *two)
    with pytest.raises(ConfigError, match="question_id 1 is in more than one workload"):
        workloads.together([one, one])
