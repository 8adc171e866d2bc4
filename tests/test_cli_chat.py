"""`edgespec chat` in a terminal and in a pipe, with a fake model (C43, C44, C49-C52)."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from terminal import CTRL_C, CTRL_D, Terminal

FAKE = [sys.executable, str(Path(__file__).parent / "fake_cli.py")]


def environment(**more: str) -> dict[str, str]:
    # PROMPT_TOOLKIT_NO_CPR: it would ask this terminal where the cursor is.
    return {**os.environ, "TERM": "xterm", "LANG": "C.UTF-8", "PROMPT_TOOLKIT_NO_CPR": "1", **more}


@contextmanager
def chat(*options: str, columns: int = 80, pass_s: float = 0.0, **env: str) -> Iterator[Terminal]:
    command = [*FAKE, "chat", *options]
    with Terminal(command, environment(EDGESPEC_FAKE=str(pass_s), **env), columns) as terminal:
        yield terminal


def piped(*options: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*FAKE, *options], input=stdin, capture_output=True, env=environment(**env), timeout=30)


def test_three_turns_notes_status_and_ctrl_d() -> None:
    with chat() as terminal:
        assert "note: a note about the model" in terminal.wait_for(">>> ")
        for word in ("one", "two", "three"):
            terminal.send(word + "\r")
            terminal.wait_for(f"You said: {word}")
            assert re.search(r"tok/s · – % accepted · [\d.]+ tokens/round · – °C", terminal.wait_for(">>> "))
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0
    assert terminal.text.count("a note about the model") == 1


def test_ctrl_c_stops_the_answer_and_twice_at_the_prompt_quits() -> None:
    with chat(pass_s=0.02) as terminal:
        terminal.wait_for(">>> ")
        terminal.send("count\r")
        terminal.wait_for("3 4")
        terminal.send(CTRL_C)
        terminal.wait_for("note: stopped")
        terminal.wait_for(">>> ")
        terminal.send("hello\r")
        terminal.wait_for("You said: hello")
        terminal.wait_for(">>> ")
        time.sleep(1.1)  # else the press above and the next one count as two
        terminal.send(CTRL_C)
        terminal.wait_for("Ctrl-C again quits")
        terminal.wait_for(">>> ")
        terminal.press_until_it_ends(CTRL_C)
        assert terminal.exit_code() == 130


def test_ctrl_c_twice_while_answering_quits() -> None:
    with chat(pass_s=0.05) as terminal:
        terminal.wait_for(">>> ")
        terminal.send("count\r")
        terminal.wait_for("1 2")
        terminal.send(CTRL_C)
        terminal.wait_for("note: stopped")
        terminal.press_until_it_ends(CTRL_C)
        assert terminal.exit_code() == 130


def test_ctrl_c_while_the_prompt_is_read() -> None:
    with chat(pass_s=5) as terminal:
        terminal.wait_for(">>> ")
        terminal.send("hello\r")
        time.sleep(0.3)
        began_s = time.monotonic()
        terminal.send(CTRL_C)
        terminal.wait_for("\nnote: stopped; /retry answers the message")
        assert time.monotonic() - began_s < 1
        terminal.wait_for(">>> ")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0


def test_ctrl_c_on_a_half_typed_line_only_drops_it() -> None:
    with chat() as terminal:
        terminal.wait_for(">>> ")
        for _ in range(2):
            terminal.send("half")
            terminal.wait_for("half")
            time.sleep(0.2)  # Python sees a signal when it waits for a key, not while it shows the last one
            terminal.send(CTRL_C)
            terminal.wait_for(">>> ")
        terminal.send("whole\r")
        terminal.wait_for("You said: whole")
    assert "again quits" not in terminal.text


@pytest.mark.parametrize(
    "typed",
    ["\x1b[200~a\nb\x1b[201~\r", '"""a\rb"""\r', '"""\ra\rb\r"""\r', "a\\\rb\r"],
    ids=["pasted", "quoted", "quoted on own lines", "backslash"],
)
def test_several_lines_are_one_message(typed: str) -> None:
    with chat() as terminal:
        terminal.wait_for(">>> ")
        terminal.send(typed)
        assert terminal.wait_for("You said: a\nb").count("You said") == 1


def test_with_prompt_toolkit() -> None:
    pytest.importorskip("prompt_toolkit")
    with chat(EDGESPEC_FAKE_TOOLKIT="1") as terminal:
        for typed, shown in [("\x1b[200~a\nb\x1b[201~\r", "You said: a\nb"), ('"""a\rc"""\r', "You said: a\nc")]:
            terminal.wait_for(">>>")
            terminal.send(typed)
            terminal.wait_for(shown)
        terminal.wait_for(">>>")
        time.sleep(0.3)
        terminal.send("half" + CTRL_C)
        terminal.wait_for(">>>")
        time.sleep(0.3)
        terminal.send(CTRL_C)
        terminal.wait_for("Ctrl-C again quits")
        terminal.wait_for(">>>")
        terminal.send(CTRL_C)
        assert terminal.exit_code() == 130


def test_commands_are_never_sent() -> None:
    with chat() as terminal:
        for typed, shown in [
            ("/halp", "unknown command /halp: did you mean /help?"),
            ("/help", "/retry"),
            ("/retry", "error: there is no message to answer again"),
            ("/undo", "error: there is nothing to undo"),
            ("/stats", "error: there is no answer yet"),
            ("/set temp 7", "error: temperature must be a number from 0 to 5"),
            ("/set temprature 1", "did you mean temperature"),
            ("/set n_ctx 100", "restart"),
            ("/set max-tokens 4", "max_tokens = 4"),
            ("/set think hide", "think = hide"),
            ("/drafter grams", "choose one of auto,"),
            ("/drafter none", "drafter = none"),
            ("/system be brief", "system text set"),
            ("/system", "be brief"),
            ("/file /nowhere", "error: /nowhere: cannot be read"),
            ("/load /nowhere", "error: /nowhere: cannot be read"),
            ("/save", "name a file"),
        ]:
            terminal.wait_for(">>> ")
            terminal.send(typed + "\r")
            terminal.wait_for(shown)
        assert "You said" not in terminal.text
        terminal.wait_for(">>> ")
        terminal.send(" /help\r")
        terminal.wait_for("You \n")
        terminal.wait_for("cut off after 4 tokens")
        terminal.wait_for(">>> ")
        terminal.send("/bye\r")
        assert terminal.exit_code() == 0


def test_save_load_file_retry_undo(tmp_path: Path) -> None:
    saved, notes, other = tmp_path / "talk.json", tmp_path / "my notes.txt", tmp_path / "other"
    notes.write_text("content of the notes\n")
    other.write_text("precious")
    with chat() as terminal:

        def do(typed: str, shown: str) -> None:
            terminal.wait_for(">>> ")
            terminal.send(typed + "\r")
            terminal.wait_for(shown)

        do("one", "You said: one")
        do("/retry", "at temperature 0.7 instead of 0.2")
        terminal.wait_for("You said: one")
        do(f"/save {other}", "is not a saved conversation")
        do(f"/save {saved}", "saved 1 turn to")
        do("two", "You said: two")
        do("/save", "saved 2 turns to")
        do("/undo", "forgot: two")
        do("/clear", "forgot 1 turn")
        do(f"/load {saved}", "loaded 2 turns from")
        do(f"/file '{notes}'", "my notes.txt (21 tokens) goes with the next message")
        do("sum up", "You said: my notes.txt:\n\ncontent of the notes\n\nsum up")
        do("next", "You said: next")
        do("/stats", "of 4096 tokens")
    assert other.read_text() == "precious"
    contents = [message["content"] for message in json.loads(saved.read_text())["messages"]]
    assert contents == ["one", "You said: one", "two", "You said: two"]


def test_history_is_private_and_comes_back() -> None:
    file = Path(os.environ["XDG_STATE_HOME"]) / "edgespec" / "chat_history.jsonl"
    with chat() as terminal:
        terminal.wait_for(">>> ")
        terminal.send("remember me\r")
        terminal.wait_for("You said: remember me")
        terminal.wait_for(">>> ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with chat("--no-history") as terminal:
        terminal.wait_for(">>> ")
        terminal.send("secret\r")
        terminal.wait_for("You said: secret")
        terminal.wait_for(">>> ")
    assert json.loads(file.read_text()) == "remember me"
    with chat() as terminal:
        terminal.wait_for(">>> ")
        terminal.send("\x1b[A")
        terminal.wait_for("remember me")
        terminal.send("\r")
        terminal.wait_for("You said: remember me")


def test_unwritable_history_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with chat(XDG_STATE_HOME=str(tmp_path / "file")) as terminal:
        for word in ("one", "two"):
            terminal.wait_for(">>> ")
            terminal.send(word + "\r")
            terminal.wait_for(f"You said: {word}")
        terminal.wait_for(">>> ")
    assert terminal.text.count("the history is not kept") == 1


def test_twenty_columns_and_no_colour() -> None:
    with chat("--color", "never", columns=20) as terminal:
        terminal.wait_for(">>> ")
        terminal.send("hi\r")
        terminal.wait_for("You said: hi")
        lines = terminal.wait_for(">>> ").split("\n")
        assert lines[1].endswith(" t/s · – %") or lines[1].endswith(" t/s")
        assert len(lines[1]) <= 20
    assert "\x1b[2m" not in terminal.raw


def test_thinking_is_dimmed_and_control_characters_do_nothing() -> None:
    with chat() as terminal:
        terminal.wait_for(">>> ")
        terminal.send("think\r")
        terminal.wait_for("hm␛[31m\n\nyes")
        terminal.wait_for(">>> ")
        assert "\x1b[2mh" in terminal.raw
    with chat("--think", "hide", "--no-status", NO_COLOR="1") as terminal:
        terminal.wait_for(">>> ")
        terminal.send("think\r")
        shown = terminal.wait_for("yes\n>>> ")
        assert "hm" not in shown
        assert "\x1b[2m" not in terminal.raw


def test_context_overflow_is_said_and_survived(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("x" * 220)
    with chat("--ctx", "256", "--max-tokens", "20") as terminal:
        for i in range(8):
            terminal.wait_for(">>> ")
            terminal.send(f"question {i}\r")
            terminal.wait_for(f"You said: question {i}")
        terminal.wait_for(">>> ")
        terminal.send("x" * 300 + "\r")
        terminal.wait_for("error: this message has")
        terminal.wait_for(">>> ")
        terminal.send(f"/file {file}\r")
        terminal.wait_for("goes with the next message")
        terminal.wait_for(">>> ")
        terminal.send("sum up\r")
        terminal.wait_for("files out")
        terminal.wait_for(">>> ")
        terminal.send("/file -\r")
        terminal.wait_for("no file goes with the next message")
        terminal.wait_for(">>> ")
        terminal.send("still here\r")
        terminal.wait_for("You said: still here")
    assert 1 <= " ".join(terminal.text.split()).count("no longer sent") <= 4  # lines break at words


def test_piped_stdin_is_one_message_and_stdout_is_text_only() -> None:
    done = piped("chat", stdin=b"a\nb\n")
    assert done.returncode == 0
    assert done.stdout == b"You said: a\nb\n"
    assert b"\x1b" not in done.stdout + done.stderr
    assert piped("chat", "-p", "think").stdout == b"yes\n"
    assert piped("chat", "-p", "think", "--think", "show").stdout == b"<think>hm\x1b[31m</think>\n\nyes\n"
    assert piped("chat", "-p", "/help").stdout == b"You said: /help\n"


def test_json_is_one_object_a_line() -> None:
    done = piped("chat", "--json", stdin=b"one\n\ntwo\n")
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert [turn["text"] for turn in turns] == ["You said: one", "You said: two"]
    assert turns[1]["usage"]["cached_tokens"] > 0
    assert set(turns[0]) == {"text", "tokens", "finish_reason", "usage", "report"}
    assert json.loads(piped("chat", "--json", "-p", "x", EDGESPEC_VERBOSE="1").stdout)["finish_reason"] == "stop"


@pytest.mark.parametrize("command", ["chat", "run"])
@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        ((), b"", "the prompt is empty"),
        ((), b" \n", "the prompt is empty"),
        ((), b"a\xffb", "stdin is not UTF-8: byte 0xff at offset 1"),
        (("-p", ""), b"", "the prompt is empty"),
        (("-p", b"a\xe9"), b"", "-p is not UTF-8 (byte at offset 1)"),
        (("-p", "x", "--drafter", "magic"), b"", "unknown drafter 'magic': choose one of auto, none, ngram"),
        (("-p", "x", "--temp", "hot"), b"", "--temp must be a number from 0 to 5, not 'hot'"),
        (("-p", "x", "--temp", "nan"), b"", "--temp must be a number from 0 to 5"),
        (("-p", "x", "--max-tokens", "-1"), b"", "--max-tokens must be a whole number of at least 1"),
        (("-p", "x", "--max-tokens", "9" * 30), b"", "--max-tokens must be a whole number"),
        (("-p", "x", "--top-p", "0"), b"", "--top-p must be a number above 0"),
        (("-p", "x", "--ctx", "1"), b"", "--ctx must be a whole number of at least 32"),
        (("-p", "x", "--stop", ""), b"", "--stop must be a text that is not empty"),
        (("-p", "x", "--bogus"), b"", "no such option"),
    ],
)
def test_bad_input_is_one_line_and_code_2(command: str, options: tuple[str, ...], stdin: bytes, message: str) -> None:
    done = piped(command, *options, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert message in done.stderr.decode()


@pytest.mark.parametrize("command", ["chat", "run"])
def test_closed_stdout_is_quiet(command: str) -> None:
    shell = " ".join(f"'{word}'" for word in [*FAKE, command, "-p", "count"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell} | head -c1"], capture_output=True, env=environment(), timeout=60
    )
    assert done.returncode in {0, 141}
    assert done.stdout == b"1"
    assert b"Traceback" not in done.stderr
    assert b"Error" not in done.stderr
