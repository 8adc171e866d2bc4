"""From generated text to a package, on tiny random models, with torch; without it, what is said instead."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import gguf_maker
import numpy as np
import pytest

from edgespec.cli import main as cli
from edgespec.draft import onnx, package
from edgespec.draft.numpy_eval import operators
from edgespec.draft.onnx_file import Array
from edgespec.drafters import facts_of
from edgespec.errors import DrafterError
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions
from edgespec.train import data, measure
from edgespec.train.keep_out import KeepOut
from edgespec.train.text_file import TextFacts, TextFile

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnx") is None,
    reason="torch or onnx is not installed (the extra [train])",
)


def text() -> data.Text:
    """Two answers, one of them held out."""
    tokens = np.array([1, 2, 3, 1, 2, 3, 1, 2, 1, 2, 3, 4], np.int32)
    n = len(tokens)
    held = np.arange(n) >= 8
    after = np.concatenate((np.arange(8)[::-1], np.arange(4)[::-1])).astype(np.int32)
    none = np.zeros(n, np.bool_)
    top = np.stack((tokens, np.full(n, 9)), 1).astype(np.int32)
    zeros = np.zeros((n, 2), np.float16)
    return data.Text(tokens, zeros, top, zeros, after, none, held, np.zeros(n, np.float32), np.full(n, "chat"))


def test_the_bigram_table_is_counted_by_place() -> None:
    made = text()
    places = made.places(held_out=True)
    assert places.tolist() == [8, 9, 10]
    draft = measure.bigrams(made)(made.tokens[places].astype(np.int64), 3)
    assert draft.tolist() == [[2, 3, 1], [3, 1, 2], [1, 2, 3]]
    ahead = measure.ahead(made, places, 3)
    assert ahead.tolist() == [[2, 3, 4], [3, 4, -1], [4, -1, -1]]
    found = measure.table(made, places, draft == ahead)
    assert found["greedy"].by_place == (2 / 3, 1 / 2, 0.0)
    assert "at 0.7" not in found


def test_the_vocabulary_is_of_the_text_to_train_on() -> None:
    assert data.vocabulary(text(), 2).tolist() == [1, 2]
    assert data.vocabulary(text(), 99).tolist() == [1, 2, 3]


def test_without_torch_nothing_is_begun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.run(("drafter", "train", "gone.gguf")) == 1
    assert "onnx is not installed: pip install 'edgespec[train]'" in capsys.readouterr().err


@needs_torch
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_package_from_nothing_but_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    model = gguf_maker.make(tmp_path / "tiny.gguf", kind, output_scale=3.0)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("A sentence about boats and the sea. " * 12, encoding="utf-8")
    kept = tmp_path / "kept.jsonl"
    kept.write_text(json.dumps({"question_id": 1, "turns": ["sentence about boats and the sea"]}) + "\n", "utf-8")
    where = str(tmp_path / "a.text")
    common = (
        "drafter",
        "train",
        str(model),
        "--from",
        str(notes),
        "--keep-out",
        str(kept),
        "--text",
        where,
        "--threads",
        "1",
        "--no-machine",
    )
    assert cli.run((*common, "--minutes", "10", "--text-mb", "2", "--only", "generate")) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    fit = ("--minutes", "0.05", "--only", "fit", "--rows", "200", "--width", "16", "--out", str(out), "--name", "mine")
    assert cli.run((*common, *fit, "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(out / "mine")
    card = tomllib.loads((out / "mine" / package.CARD).read_text(encoding="utf-8"))
    assert card["training"]["n_tokens"] > 0
    assert card["training"]["kept_out_texts"] > 0
    assert len(card["acceptance"]["rates"]) == 4
    assert {"all", "greedy"} <= set(card["acceptance"]["held_out"]) == set(card["acceptance"]["bigram"])
    found = package.load(out / "mine")
    assert {node.op for node in found.graph.nodes} <= {*operators(), "Constant"}
    with load(model, TargetOptions(n_ctx=64, n_threads=1)) as target:
        fast = onnx.load(out / "mine", facts_of(target), "onnxruntime")
        slow = onnx.load(out / "mine", facts_of(target), "numpy")
    rng = np.random.default_rng(0)
    for _ in range(20):
        feeds: dict[str, Array] = {
            "hidden": rng.normal(size=(1, gguf_maker.N_EMBD)).astype(np.float32),
            "tokens": rng.integers(0, fast.n_known + 1, (1, 1)),
        }
        draft, confidence = fast.runner.run(feeds)
        again, claim = slow.runner.run(feeds)
        assert (draft < fast.n_known).all()
        assert (draft == again).mean() > 0.7  # ties of quantised numbers fall differently
        assert ((confidence >= 0) & (confidence <= 1.001)).all()
        assert np.isfinite(claim).all()


def test_text_that_was_generated_with_nothing_kept_out_is_looked_at_again(tmp_path: Path) -> None:
    facts = TextFacts("a" * 64, 4, 256, 2)
    said = ["Tell me of boats on the wide blue sea.", "What is a harbour?"]
    kept_out = KeepOut(["boats on the wide blue sea"])
    with TextFile(tmp_path / "a.text", facts, writing=True) as file:
        for number, prompt in enumerate(said * 2):
            tokens = np.frombuffer(prompt.encode() + b"answer", np.uint8).astype(np.int32)
            zeros = np.zeros((6, 2))
            meta = {"number": number, "held_out": number > 1, "temperature": 0.0, "group": "chat"}
            file.add(meta, tokens, np.zeros((6, 4), np.float16), zeros, zeros.astype(np.float16))
        left_out = data.touching(file, lambda token: bytes([token]), kept_out)
        assert left_out == {0, 2}
        assert len(data.load(file, 1 << 20, left_out).tokens) == 12
        with pytest.raises(DrafterError, match="too little text"):
            data.load(file, 1 << 20, frozenset({2, 3}))
