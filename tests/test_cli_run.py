"""`edgespec run`: where the prompt comes from, what goes where, how it ends (with a fake model and the real one)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from test_cli_chat import FAKE, environment, piped

from edgespec.interfaces import Report

REAL = [sys.executable, "-m", "edgespec"]


def real(*options: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*REAL, *options], input=stdin, capture_output=True, env=environment(), timeout=120)


def test_prompt_from_option_file_and_stdin(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbffrom a file\r\n")
    assert piped("run", "-p", "hi").stdout == b"You said: hi\n"
    assert piped("run", "--file", str(file)).stdout == b"You said: from a file\n"
    assert piped("run", "--file", "-", stdin=b"one\ntwo\n").stdout == b"You said: one\ntwo\n"
    assert piped("run", stdin="grüße".encode()).stdout == "You said: grüße\n".encode()


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (("-p", "x", "--file", "y"), "-p or with --file, not both", 2),
        (("--file", "/nowhere/file"), "/nowhere/file: cannot be read: No such file", 2),
        (("--file", "/"), "/: cannot be read: Is a directory", 2),
        (("--raw", "--system", "s", "-p", "x"), "--system needs the chat template", 2),
        (("--raw", "-p", ""), "the prompt is empty", 2),
        (("-p", "x" * 500, "--ctx", "256"), "and the context holds 256", 3),
    ],
)
def test_bad_input(options: tuple[str, ...], message: str, code: int) -> None:
    done = piped("run", *options)
    assert done.returncode == code
    assert done.stdout == b""
    assert message in done.stderr.decode().splitlines()[-1]


def test_json_is_exactly_what_is_documented() -> None:
    done = piped("run", "--json", "-p", "hi", "--max-tokens", "4")
    body = json.loads(done.stdout)
    assert list(body) == ["text", "tokens", "finish_reason", "usage", "report"]
    assert body["text"] == "You "
    assert body["tokens"] == list(b"You ")
    assert body["finish_reason"] == "length"
    assert set(body["usage"]) == {"prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(body["report"]) == {field.name for field in fields(Report)}
    assert json.loads(piped("run", "--json", "-p", "think").stdout)["text"].startswith("<think>")
    assert json.loads(piped("run", "--json", "-p", "think", "--think", "hide").stdout)["text"] == "yes"


def test_options_reach_the_engine() -> None:
    assert piped("run", "-p", "hi", "--stop", "sa", "--stop", "zz").stdout == b"You \n"
    assert piped("run", "-p", "hi", "--max-tokens", "2147483647").returncode == 0
    done = piped("run", "--raw", "-p", "user\nhi<|start|>assistant\n")
    assert done.stdout == b"You said: hi"
    assert b"drafter" in piped("run", "-p", "hi", "--stats").stderr


@pytest.mark.parametrize("json_wanted", [False, True])
def test_ctrl_c_keeps_the_text_and_ends_with_130(json_wanted: bool) -> None:
    command = [*FAKE, "run", "-p", "count", "--temp", "0", *(["--json"] if json_wanted else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(EDGESPEC_FAKE="0.02")
    ) as process:
        assert process.stdout is not None
        first = b"" if json_wanted else process.stdout.read(3)
        time.sleep(2 if json_wanted else 0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    if json_wanted:
        body = json.loads(out)
        assert body["finish_reason"] == "cancelled"
        assert body["text"].startswith("1 2")
    else:
        assert (first + out).startswith(b"1 2")


def test_output_that_the_terminal_cannot_show_is_replaced() -> None:
    done = piped("run", "-p", "grüße", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout == b"You said: gr??e\n"
    assert json.loads(piped("run", "--json", "-p", "grüße", PYTHONIOENCODING="ascii").stdout)["text"].endswith("grüße")


@pytest.mark.model
def test_real_model_answers_and_reports(default_model: Path) -> None:
    options = ("run", str(default_model), "-p", "Say hello.", "--max-tokens", "8", "--temp", "0", "--ctx", "512")
    plain = real(*options, "--drafter", "none")
    assert plain.returncode == 0, plain.stderr
    body = json.loads(real(*options, "--json").stdout)
    assert body["text"].strip() == plain.stdout.decode().strip()
    assert body["usage"]["completion_tokens"] == len(body["tokens"]) <= 8
    assert body["report"]["load_s"] > 0


@pytest.mark.model
def test_real_model_refuses_a_prompt_that_does_not_fit(default_model: Path) -> None:
    done = real("run", str(default_model), "--ctx", "64", stdin=b"word " * 500)
    assert done.returncode == 3
    assert done.stdout == b""
    assert b"the context holds 64" in done.stderr.splitlines()[-1]


@pytest.mark.model
def test_ctrl_c_stops_a_long_prompt(default_model: Path) -> None:
    text = b" ".join(str(i).encode() for i in range(1200))
    command = [*REAL, "run", str(default_model), "--ctx", "8192", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        _wait_until_busy(process.pid)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - began_s
    assert process.returncode == 130, err
    if out:  # not pressed while the model was loading
        assert json.loads(out)["finish_reason"] == "cancelled"
    assert seconds < 5


def _wait_until_busy(pid: int, cpu_s: float = 2.5) -> None:
    """Wait until the process has used so much processor time that it must be past loading."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if (int(numbers[11]) + int(numbers[12])) * tick_s > cpu_s:
            return
        time.sleep(0.02)
