"""A chat with the real model, as a user has it in a terminal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from terminal import CTRL_C, CTRL_D, Terminal
from test_cli_chat import environment

pytestmark = pytest.mark.model


# prompt_toolkit, where it is installed, moves the cursor about instead of writing: only a real terminal can read it.
START = "import sys; sys.modules['prompt_toolkit'] = None; from edgespec.cli.main import main; main()"


def chat(model: Path, *options: str) -> Terminal:
    return Terminal([sys.executable, "-c", START, "chat", str(model), *options], environment(), timeout_s=90)


def ask(terminal: Terminal, text: str) -> str:
    """Send a line when asked for one; return what is shown up to the next prompt."""
    terminal.send(text + "\r")
    return terminal.wait_for("\n>>> ")


def test_three_turns_stop_retry_save_load(default_model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with chat(default_model, "--ctx", "1024", "--temp", "0") as terminal:
        terminal.wait_for(">>> ")
        ask(terminal, "/set max_tokens 16")
        assert "tok/s" in ask(terminal, "Name a river.")
        stats = ask(terminal, "Name another river.") and ask(terminal, "/stats")
        match = re.search(r"prompt +(\d+) tokens, (\d+) of them cached", stats)
        assert match is not None, stats
        assert 0 < int(match[2]) < int(match[1]), terminal.text
        ask(terminal, "/set max_tokens auto")
        terminal.send("Write a very long story about a fox and a river, with many chapters.\r")
        terminal.wait_for("\n")
        terminal.wait_for(" the")
        terminal.send(CTRL_C)
        terminal.wait_for("note: stopped")
        terminal.wait_for("\n>>> ")
        ask(terminal, "/set max_tokens 24")
        assert "saved 3 turns" in ask(terminal, f"/save {saved}")
        before = json.loads(saved.read_text())
        assert " the" in before["messages"][5]["content"]
        assert "temperature 0.7 instead of 0" in ask(terminal, "/retry")
        ask(terminal, "/save")
        after = json.loads(saved.read_text())
        assert after["messages"][:5] == before["messages"][:5]
        assert after["messages"][5] != before["messages"][5]
        ask(terminal, "/clear")
        assert "loaded 3 turns" in ask(terminal, f"/load {saved}")
        assert "tok/s" in ask(terminal, "And then?")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0


def test_overflow(default_model: Path) -> None:
    with chat(default_model, "--ctx", "256", "--max-tokens", "40", "--temp", "0") as terminal:
        terminal.wait_for(">>> ")
        shown = "".join(ask(terminal, f"Tell me something about the number {i}, please.") for i in range(5))
        assert 1 <= shown.count("no longer sent") <= 3
        assert "error" not in shown
        assert "error: this message" in ask(terminal, "word " * 300)
        assert "tok/s" in ask(terminal, "Go on.")
