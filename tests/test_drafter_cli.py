"""`edgespec drafter`: what is there, what is chosen, and what a package is worth on a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf_maker
import numpy as np
import onnx_maker as maker
import pytest

from edgespec.cli import main as cli
from edgespec.draft import package
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(("drafter", *args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return maker.write(tmp_path / "mine", maker.counting(), n_tokens=3)


def test_from_an_empty_list_to_a_package_in_use_and_back(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    assert out == "no drafter packages are here; `edgespec drafter use FOLDER` takes one in\n"
    code, out, err = run(capsys, "use", str(folder))
    assert (code, out, err) == (0, "mine drafts from now on, for tiny llama; onnxruntime computes it\n", "")
    assert run(capsys, "list")[1] == "* mine  token  for tiny llama  right 0.50 0.50 0.50 0.50\n"
    assert json.loads(run(capsys, "list", "--json")[1])["in_use"] == "mine"
    shown = json.loads(run(capsys, "show", "mine", "--json")[1])
    assert (shown["name"], shown["in_use"], shown["n_draft"], shown["seed"]) == ("mine", True, 4, 0)
    assert "command: tests/onnx_maker.py" in run(capsys, "show", "mine")[1]
    assert run(capsys, "use", "none")[:2] == (0, "n-grams alone draft from now on\n")
    assert package.in_use() is None
    assert run(capsys, "use", "mine")[0] == 0
    code, out, err = run(capsys, "rm", "mine", "--yes")
    assert (code, out) == (0, "")
    assert err.endswith(" freed\n")
    assert package.in_use() is None


def test_a_package_that_is_damaged_is_listed_with_its_problem(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    installed = package.install(folder)
    (installed / package.CARD).write_text("format = 2\n", encoding="utf-8")
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert out.startswith("  mine: ")
    assert "it is of format 2" in out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["use", "nope"], 1, "no drafter package is named 'nope': `edgespec drafter list` shows what there is"),
        (["show", "nope"], 1, "no drafter package is named 'nope'"),
        (["rm", "nope", "--yes"], 1, "no drafter package is named 'nope'"),
        (["rm", "mine"], 2, "add --yes"),
        (["eval", "mine", "--by", "magic"], 2, "--by must be one of onnxruntime, numpy"),
        (["eval", "nope"], 1, "no drafter package is named 'nope'"),
        (["eval", "mine", "--model", "gone.gguf"], 3, "no such file"),
    ],
)
def test_errors_are_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    args: list[str],
    code: int,
    message: str,
) -> None:
    package.install(folder)
    monkeypatch.setattr(sys, "stdin", None)
    found, out, err = run(capsys, *args)
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("edgespec: ")
    assert err.count("\n") == 1


def test_without_onnxruntime_use_says_who_computes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = run(capsys, "use", str(folder))
    assert (code, out) == (0, "mine drafts from now on, for tiny llama; numpy computes it\n")
    assert err == "mine is computed by numpy, which takes longer: onnxruntime is not installed\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A tiny model, the hash of its tokenizer, and that of its weights."""
    path = gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")
    with load(path, TargetOptions(n_ctx=64, n_threads=1)) as target:
        return path, target.vocab.digest(gguf_maker.N_VOCAB), str(target.info.trained)


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
def test_eval_counts_what_was_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: tuple[Path, str, str], engine: str
) -> None:
    path, tokenizer, trained = model
    graph = maker.next_hidden(gguf_maker.N_EMBD, gguf_maker.N_VOCAB - 1, 16, n_draft=3)
    folder = maker.write(
        tmp_path / "mine", graph, kind="hidden", n_hidden=gguf_maker.N_EMBD, n_draft=3, tokenizer=tokenizer,
        model=trained, vocabulary=np.arange(gguf_maker.N_VOCAB - 1), unknown=gguf_maker.N_VOCAB - 1,
    )  # fmt: skip
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question_id": 1, "group": "a", "turns": ["one two three"]}\n', encoding="utf-8")
    args = (
        "eval",
        str(folder),
        "--model",
        str(path),
        "--workload",
        str(questions),
        "--max-tokens",
        "12",
        "--by",
        engine,
    )
    code, out, err = run(capsys, *args, "--json")
    assert (code, err.count("\n")) == (0, 1)  # the note that the model has no chat template
    found = json.loads(out)
    assert found["by"] == engine
    # The first round has no state to draft from; on a busy machine others go without, too, while teams are tried.
    first = found["by_place"][0]
    assert 0 < first["n"] < found["n_rounds"] <= 11
    assert found["by_place"][1]["n"] <= first["n_right"] <= first["n"]
    assert sum(share["n"] for share in found["by_confidence"]) == first["n"] > 0
    assert found["beyond_ngrams"]["n"] <= first["n"]
    code, out, _ = run(capsys, *args)
    assert code == 0
    assert "place  tried  right  at training" in out
    assert "where n-grams find nothing: " in out


def test_eval_on_another_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: tuple[Path, str, str]
) -> None:
    folder = maker.write(tmp_path / "mine", maker.counting(), n_tokens=3)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question_id": 1, "group": "a", "turns": ["one two three"]}\n', encoding="utf-8")
    code, out, err = run(capsys, "eval", str(folder), "--model", str(model[0]), "--workload", str(questions))
    assert (code, out) == (1, "")
    assert "it was trained for the tokenizer of tiny llama" in err
