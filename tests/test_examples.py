"""The examples run as they stand, on the real model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "ask": "drafted tokens accepted",
    "async_answers": "\n",
    "cancel": "cancelled after",
    "chat": "prompt tokens were cached",
    "compat": "n_gpu_layers has no effect",
    "json_out": "'year': ",
    "own_drafter": "repeats",
    "rag": "tokens were drafted",
    "server_client": "drafted tokens accepted",
    "stream": "tokens a pass",
}


def test_each_example_is_short_and_known() -> None:
    assert {path.stem for path in EXAMPLES} == set(SAYS)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 30 for path in EXAMPLES)


@pytest.mark.model
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, default_model: Path) -> None:
    done = _against_a_server(path, default_model) if path.stem == "server_client" else _run(path, str(default_model))
    assert SAYS[path.stem] in done


def _run(path: Path, argument: str) -> str:
    done = subprocess.run([sys.executable, path, argument], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _against_a_server(path: Path, model: Path) -> str:
    pytest.importorskip("openai")
    command = [sys.executable, "-m", "edgespec", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            return _run(path, next(word for word in line.split() if word.startswith("http://")) + "v1")
        finally:
            server.terminate()
