"""--json-schema, --grammar and --regex: what is refused in one line, and that the rest reaches the engine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_cli_chat import piped

from edgespec.cli.common import constraint_of
from edgespec.constraint import Constraint
from edgespec.errors import ConfigError


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--regex", "a", "--grammar", "b"), "give one of --json-schema, --grammar and --regex"),
        (("--json-schema", "/nowhere/schema.json"), "/nowhere/schema.json: cannot be read: No such file"),
        (("--json-schema", '{"not": {}}'), "JSON schema, #: a grammar cannot guarantee 'not'"),
        (("--json-schema", '{"a"'), "JSON schema: not JSON"),
        (("--grammar", "/nowhere/list.gbnf"), "/nowhere/list.gbnf: cannot be read: No such file"),
        (("--json-schema", ""), "a schema is a JSON object"),
        (("--json-schema", "[1]"), "a schema is a JSON object"),
        (("--regex", "("), "regular expression '(': missing )"),
    ],
)
def test_refused(command: str, options: tuple[str, ...], message: str) -> None:
    done = piped(command, "-p", "hi", *options)
    assert done.returncode == 2
    assert done.stdout == b""
    assert message in done.stderr.decode().splitlines()[-1]


def test_read(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text('{"type": "null"}')
    grammar.write_text('root ::= "a" # end\n')
    assert constraint_of(str(schema), None, None) == Constraint.json_schema({"type": "null"})
    assert constraint_of(' {"type": "null"}', None, None) == Constraint.json_schema({"type": "null"})
    assert constraint_of(None, str(grammar), None) == Constraint('root ::= "a" # end\n')
    assert constraint_of(None, None, "a+") == Constraint.regex("a+")
    assert constraint_of(None, None, None) is None
    with pytest.raises(ConfigError, match=re.escape("--regex is not UTF-8")):
        constraint_of(None, None, "\udcff")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for options in ((str(pipe), None, None), (None, str(pipe), None), (None, str(tmp_path), None)):
        with pytest.raises(ConfigError, match="not a regular file"):
            constraint_of(*options)


def test_given_to_the_engine() -> None:
    for command in ("run", "chat"):
        done = piped(command, "-p", "hi", "--regex", "x{3}")
        assert (done.returncode, done.stdout) == (0, b"You said: hi\n")  # the fake engine only takes note of it
