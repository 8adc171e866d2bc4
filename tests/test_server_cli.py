"""`edgespec serve`: options, the line it prints, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli_chat import environment

from edgespec.cli import serve
from edgespec.cli.main import run
from edgespec.errors import ConfigError

FAKE = [sys.executable, str(Path(__file__).parent / "server_fakes.py"), "serve", "--port", "0", "--temp", "0"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "other machines may reach 0.0.0.0: give --api-key-file"),
        (("--host", "nowhere.invalid"), "no such address"),
        (("--api-key", "a b"), "without spaces"),
        (("--api-key", ""), "without spaces"),
        (("--api-key", "a", "--api-key-file", "b"), "not both"),
        (("--api-key-file", "/nowhere/key"), "cannot be read"),
        (("--port", "70000"), "--port"),
        (("--parallel", "0"), "--parallel"),
        (("--drafter", "magic"), "unknown drafter"),
    ],
)
def test_wrong_usage(options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *options]) == 2
    assert words in capsys.readouterr().err


def test_the_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    assert serve.key_of(None, str(file)) == "s3cret"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="a line of ASCII"):
        serve.key_of(None, str(file))


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("edgespec.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("edgespec.server.run", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["serve"]) == 2
    assert "pip install 'edgespec[server]'" in capsys.readouterr().err


@contextlib.contextmanager
def started(*options: str, pass_s: float) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A server that runs, its port, and what it told."""
    command, env = [*FAKE, *options], environment(EDGESPEC_FAKE=str(pass_s))
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        told = ""
        while "Ctrl-C ends it" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        found = re.search(r"fake on http://127\.0\.0\.1:(\d+)/ \(API: /v1\), 4096 tokens", told)
        assert found is not None
        try:
            yield process, int(found[1]), told
        finally:
            process.kill()


@contextlib.contextmanager
def asked(port: int, text: str) -> Iterator[http.client.HTTPResponse]:
    """The stream of an answer that has begun."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True, "speculative.n_max": 0}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as link:
        link.request("POST", "/v1/chat/completions", json.dumps(body))
        response = link.getresponse()
        assert response.status == 200
        response.readline()
        yield response


def takes(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_ends_after_the_answers_under_way(sign: signal.Signals) -> None:
    with started("--seed", "7", pass_s=0.01) as (process, port, told):
        with asked(port, "my secret") as response:
            process.send_signal(sign)
            text = response.read().decode()
        out, rest = process.communicate(timeout=30)
    assert "[DONE]" in text
    assert '"seed":7' in text
    assert process.returncode == 0
    assert "the model is closed" in rest
    assert "secret" not in told + rest + out


def test_a_second_ctrl_c_ends_at_once() -> None:
    with started(pass_s=0.05) as (process, port, _), asked(port, "x" * 3000):
        process.send_signal(signal.SIGINT)
        while takes(port):  # the first one is obeyed once nothing new is taken
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)  # the answer would have taken minutes
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_help_names_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    told = capsys.readouterr().out
    for word in ("--api-key-file", "--parallel", "/metrics", "OpenAI"):
        assert word in told
