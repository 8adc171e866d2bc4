"""Drafter packages: what is not sound is refused in one line, before any library sees the graph."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_maker as maker
import pytest

from edgespec import paths
from edgespec.core.offers import TargetFacts
from edgespec.draft import onnx_file, package
from edgespec.errors import DrafterError

VOCABULARY = np.arange(100, 120)


def hidden(folder: Path, **changes: object) -> Path:
    options = {"kind": "hidden", "vocabulary": VOCABULARY, "unknown": 20, **changes}
    return maker.write(folder, maker.next_hidden(), **options)  # type: ignore[arg-type]


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(DrafterError) as caught:
        call()
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def test_a_sound_package_is_read_whole(tmp_path: Path) -> None:
    found = package.load(hidden(tmp_path / "a-1.0"))
    assert (found.card.name, found.card.kind, found.card.n_draft) == ("a-1.0", "hidden", 4)
    assert found.card.rates == (0.5,) * 4
    assert found.ids is not None
    assert found.ids.tolist() == VOCABULARY.tolist()
    assert {node.op for node in found.graph.nodes} >= {"MatMulInteger", "DynamicQuantizeLinear", "Softmax", "ArgMax"}
    assert found.graph.inputs["hidden"].shape == (1, 16)


def change(folder: Path, old: str, new: str) -> Path:
    card = folder / package.CARD
    text = card.read_text(encoding="utf-8")
    assert old in text
    card.write_text(text.replace(old, new, 1), encoding="utf-8")
    return folder


CARDS = {
    "version": ('"format" = 1', '"format" = 2', "it is of format 2"),
    "unknown key": ('"format" = 1', '"format" = 1\nextra = 1', "unknown key 'extra'"),
    "no name": ('"name" = "p"', '"nam" = "p"', "unknown key 'nam'"),
    "name of a folder above": ('"name" = "p"', '"name" = ".."', "is not a name"),
    "graph elsewhere": ('"graph" = "drafter.onnx"', '"graph" = "/etc/passwd"', "is not a name"),
    "graph not listed": ('"graph" = "drafter.onnx"', '"graph" = "other.onnx"', "not listed under files"),
    "kind": ('"kind" = "hidden"', '"kind" = "magic"', "kind must be hidden or token"),
    "n_draft": ('"n_draft" = 4', '"n_draft" = true', "n_draft must be a whole number from 1 to 64, not True"),
    "no draft": ('"n_draft" = 4', '"n_draft" = 0', "n_draft must be a whole number"),
    "hash": ('"hash" = "1111', '"hash" = "11 1', "not a sha256"),
    "rate": ('"rates" = [0.5', '"rates" = [nan', "a rate must be a number from 0 to 1"),
    "missing": ('["training"]', '["train"]', "unknown key 'train'"),
    "no target": ('["target"]', '["files"]', "no card of format 1"),
    "not TOML": ('"format" = 1', '"format" = ', "no card of format 1"),
}


@pytest.mark.parametrize("case", CARDS)
def test_cards_that_are_wrong(tmp_path: Path, case: str) -> None:
    old, new, expected = CARDS[case]
    assert expected in line_of(lambda: package.load(change(hidden(tmp_path / "p"), old, new)))


def test_files_that_are_not_what_the_card_says(tmp_path: Path) -> None:
    folder = hidden(tmp_path / "p")
    graph = folder / "drafter.onnx"
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-1])
    assert line_of(lambda: package.load(folder)) == "p: drafter.onnx is not what the card says: get the package again"
    graph.unlink()
    assert "is missing" in line_of(lambda: package.load(folder))
    (tmp_path / "elsewhere.onnx").write_bytes(whole)
    graph.symlink_to(tmp_path / "elsewhere.onnx")
    assert "a link" in line_of(lambda: package.load(folder))
    assert "no drafter package" in line_of(lambda: package.load(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (np.array([1, 270]), "its vocabulary names token 270, the tokenizer has 270"),
        (np.array([-1, 2]), "its vocabulary names token -1"),
        (np.array([3, 3]), "names a token twice"),
        (np.array([0.5]), "not one row of whole numbers"),
        (np.zeros((2, 2), np.int64), "not one row of whole numbers"),
        (np.array([], np.int64), "not one row of whole numbers"),
    ],
)
def test_vocabularies_that_are_wrong(tmp_path: Path, vocabulary: maker.Array, expected: str) -> None:
    folder = hidden(tmp_path / "p", vocabulary=vocabulary)
    assert expected in line_of(lambda: package.load(folder))


def test_a_vocabulary_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    folder = hidden(tmp_path / "p", vocabulary=np.array([{}], dtype=object))
    assert "its vocabulary cannot be read" in line_of(lambda: package.load(folder))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x02\x00{}"])
def test_a_vocabulary_that_is_no_array_is_one_line(tmp_path: Path, content: bytes) -> None:
    folder = hidden(tmp_path / "p")
    before = hashlib.sha256((folder / "vocabulary.npy").read_bytes()).hexdigest()
    (folder / "vocabulary.npy").write_bytes(content)
    change(folder, before, hashlib.sha256(content).hexdigest())
    assert "its vocabulary cannot be read" in line_of(lambda: package.load(folder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    folder = hidden(tmp_path / "p")
    for name in ("drafter.onnx", package.CARD):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        line_of(lambda: package.load(folder))


def test_every_opset_and_version_outside_the_known_ones_is_named(tmp_path: Path) -> None:
    for opset in (0, 12, 24, 99):
        folder = maker.write(tmp_path / f"o{opset}", maker.next_hidden(opset=opset), kind="hidden", n_vocab=21)
        text = line_of(lambda folder=folder: package.load(folder))  # type: ignore[misc]  # bound at once
        assert f"opset {opset}," in text
        assert "opsets 13 to 23" in text
    new = maker.number(1, 99) + maker.next_hidden()[2:]
    assert "IR version 99" in line_of(lambda: onnx_file.read(new, {}))


def test_wrong_inputs_and_sizes_are_named(tmp_path: Path) -> None:
    folder = maker.write(tmp_path / "p", maker.counting(), kind="hidden")
    assert "from tokens to confidence, draft, a drafter of the kind hidden goes from hidden, tokens" in line_of(
        lambda: package.load(folder)
    )
    folder = maker.write(tmp_path / "q", maker.counting(n_window=3), n_tokens=2)
    assert "input tokens has shape (1, 3)" in line_of(lambda: package.load(folder))


def model(weight: bytes, attributes: bytes = b"", more: bytes = b"") -> bytes:
    """A graph with one weight and one node."""
    node = maker.part(1, "w") + maker.part(2, "draft") + maker.part(4, "Identity") + attributes
    graph = maker.part(1, node) + maker.part(5, weight) + more
    return maker.number(1, 8) + maker.part(8, maker.number(2, 17)) + maker.part(7, graph)


WEIGHTS = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "sub/weights.bin", "secret", "", "weights.bin/..", "a\\..\\b", "c:x"]
)
def test_weights_outside_the_package_are_refused_wherever_they_hide(tmp_path: Path, location: str) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    files = {"weights.bin": tmp_path / "weights.bin"}
    outside = maker.external("w", WEIGHTS, {"location": location})
    two = maker.part(13, maker.part(1, "location") + maker.part(2, location))
    for graph in (
        model(outside),
        # In a constant's attribute.
        model(maker.tensor("w", WEIGHTS), maker.part(5, maker.part(1, "value") + maker.part(5, outside))),
        # A second place after a good one, of which a reader may take either.
        model(maker.external("w", WEIGHTS, {"location": "weights.bin"}) + two),
        # Not marked as external.
        model(outside + maker.number(14, 0)),
    ):
        assert "refused" in line_of(lambda graph=graph: onnx_file.read(graph, files))  # type: ignore[misc]


def test_weights_beside_the_graph_are_read_within_their_bounds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"1234" + WEIGHTS.tobytes())
    files = {"weights.bin": tmp_path / "weights.bin"}
    good = {"location": "weights.bin", "offset": "4", "length": "16"}
    graph = onnx_file.read(model(maker.external("w", WEIGHTS, good)), files)
    assert graph.weights["w"].tolist() == WEIGHTS.tolist()
    assert graph.external == {"weights.bin"}
    for offset in ("5", "-4", "x", str(2**70)):
        bad = model(maker.external("w", WEIGHTS, {**good, "offset": offset}))
        assert "damaged" in line_of(lambda bad=bad: onnx_file.read(bad, files))  # type: ignore[misc]


@pytest.mark.parametrize("number", [20, 25])
def test_functions_and_training_steps_are_refused(number: int) -> None:
    graph = model(maker.tensor("w", WEIGHTS)) + maker.part(number, b"")
    assert "must not have" in line_of(lambda: onnx_file.read(graph, {}))


@pytest.mark.parametrize("number", [6, 11, 22])
def test_subgraphs_are_refused(number: int) -> None:
    attribute = maker.part(5, maker.part(1, "body") + maker.part(number, b""))
    assert "must not have" in line_of(lambda: onnx_file.read(model(maker.tensor("w", WEIGHTS), attribute), {}))


def test_sparse_weights_and_several_graphs_are_refused() -> None:
    sparse = model(maker.tensor("w", WEIGHTS), more=maker.part(15, b""))
    assert "must not have" in line_of(lambda: onnx_file.read(sparse, {}))
    twice = model(maker.tensor("w", WEIGHTS)) + maker.part(7, b"")
    assert "2 graphs" in line_of(lambda: onnx_file.read(twice, {}))


def test_numbers_are_read_in_each_way_they_are_written() -> None:
    name = maker.part(8, "w")
    two, row = maker.number(1, 2), maker.part(1, maker.varint(1) + maker.varint(2))
    floats = two + maker.number(2, 1) + name + maker.part(4, np.array([1.5, -2], np.float32).tobytes())
    wholes = two + maker.number(2, 7) + name + maker.number(7, 3) + maker.number(7, -4)
    packed = row + maker.number(2, 3) + name + maker.part(5, maker.varint(5) + maker.varint(-6))
    for raw, expected in ((floats, [1.5, -2.0]), (wholes, [3, -4]), (packed, [[5, -6]])):
        assert onnx_file.read(model(raw), {}).weights["w"].tolist() == expected


def test_whatever_the_bytes_are_the_answer_is_a_graph_or_one_line() -> None:
    """Cut off anywhere, bytes changed anywhere: never another exception."""
    rng = random.Random(3)
    whole = maker.next_hidden()
    refused = []
    cases = [whole[:n] for n in range(0, len(whole), 37)]
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cases.append(bytes(changed))
    for data in cases:
        try:
            onnx_file.read(data, {})
        except DrafterError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not [line for line in refused if "\n" in line]


def facts(**changes: object) -> TargetFacts:
    values: dict[str, object] = {
        "name": "tiny", "n_vocab": 270, "n_hidden": 16, "model": "1" * 64, "tokenizer": lambda _n: "0" * 64, **changes
    }  # fmt: skip
    return TargetFacts(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"n_vocab": 400}, None),
        ({"n_vocab": 269}, "its tokenizer has 270 tokens, that of tiny has 269"),
        ({"tokenizer": lambda _n: "2" * 64}, "trained for the tokenizer of tiny llama, which tiny does not have"),
        ({"n_hidden": 0}, "hidden states, which tiny does not give"),
        ({"n_hidden": 32}, "hidden states of length 16, those of tiny have 32"),
        ({"model": "3" * 64}, "tiny has other weights"),
        ({"model": None}, "tiny has other weights"),
    ],
)
def test_which_targets_a_package_fits(tmp_path: Path, changes: dict[str, object], expected: str | None) -> None:
    reads_hidden = package.read_card(hidden(tmp_path / "h"))
    why = package.why_unfit(reads_hidden, facts(**changes))
    assert why == expected or (expected is not None and why is not None and expected in why)
    reads_tokens = package.read_card(maker.write(tmp_path / "t", maker.counting(), n_tokens=3))
    if set(changes) <= {"n_hidden", "model"}:
        assert package.why_unfit(reads_tokens, facts(**changes)) is None


def test_padding_at_the_tail_of_the_vocabulary_is_no_difference(tmp_path: Path) -> None:
    """The tokenizer's hash is over the card's tokens: 128 more at the end change nothing."""
    asked = []

    def tokenizer(n: int) -> str:
        asked.append(n)
        return "0" * 64

    card = package.read_card(hidden(tmp_path / "h"))
    assert package.why_unfit(card, facts(n_vocab=270 + 128, tokenizer=tokenizer)) is None
    assert asked == [270]


def test_install_use_and_remove(tmp_path: Path) -> None:
    assert package.installed() == []
    assert package.in_use() is None
    source = hidden(tmp_path / "mine")
    (source / "notes.txt").write_text("not part of it", encoding="utf-8")
    folder = package.install(source)
    assert folder == paths.data_dir() / "drafters" / "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["drafter.onnx", "drafter.toml", "vocabulary.npy"]
    assert package.install(source) == package.install(folder) == folder
    assert [found.name for found in package.installed()] == ["mine"]
    package.use("mine")
    assert package.in_use() == "mine"
    assert package.find("mine") == folder
    assert package.remove("mine") > 1000
    assert package.in_use() is None
    assert "no drafter package is named 'mine'" in line_of(lambda: package.find("mine"))
    assert source.is_dir()
    assert "not among your own" in line_of(lambda: package.remove(str(source)))


def test_nothing_unsound_is_installed(tmp_path: Path) -> None:
    folder = hidden(tmp_path / "mine")
    (folder / "drafter.onnx").write_bytes(b"")
    line_of(lambda: package.install(folder))
    assert package.installed() == []


def test_a_choice_that_cannot_be_read_or_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "edgespec" / "drafter").mkdir(parents=True)
    line_of(package.in_use)
    line_of(lambda: package.use("x"))


def test_checksums_are_of_the_files_themselves(tmp_path: Path) -> None:
    folder = hidden(tmp_path / "p")
    card = package.read_card(folder)
    assert card.files["drafter.onnx"] == hashlib.sha256((folder / "drafter.onnx").read_bytes()).hexdigest()
