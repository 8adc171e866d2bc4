"""Drafter packages made on the spot: graphs written as ONNX without the onnx package, cards, and what may be wrong."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_CODES = {"f4": 1, "u1": 2, "i1": 3, "i4": 6, "i8": 7, "?": 9}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(at: int, value: int) -> bytes:
    return varint(at << 3) + varint(value)


def part(at: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(at << 3 | 2) + varint(len(raw)) + raw


def code(array: Array) -> int:
    return _CODES[array.dtype.str[1:].replace("b1", "?")]


def tensor(name: str, array: Array) -> bytes:
    dims = b"".join(number(1, size) for size in array.shape)
    return dims + number(2, code(array)) + part(8, name) + part(9, np.ascontiguousarray(array).tobytes())


def external(name: str, array: Array, entries: Mapping[str, str]) -> bytes:
    dims = b"".join(number(1, size) for size in array.shape)
    places = b"".join(part(13, part(1, key) + part(2, value)) for key, value in entries.items())
    return dims + number(2, code(array)) + part(8, name) + places + number(14, 1)


def attribute(name: str, value: Any) -> bytes:
    if isinstance(value, int):
        return part(1, name) + number(3, value) + number(20, 2)
    if isinstance(value, float):
        return part(1, name) + varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
    if isinstance(value, np.ndarray):
        return part(1, name) + part(5, tensor("", value)) + number(20, 4)
    return part(1, name) + b"".join(number(8, item) for item in value) + number(20, 7)


def port(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    dims = b"".join(part(1, number(1, size)) for size in shape)
    return part(1, name) + part(2, part(1, number(1, dtype) + part(2, dims)))


@dataclass
class Maker:
    """Collects a graph; every call of an operator returns the name of its output."""

    nodes: list[bytes] = field(default_factory=list)
    weights: list[bytes] = field(default_factory=list)
    n: int = 0

    def weight(self, array: Array) -> str:
        self.n += 1
        self.weights.append(tensor(f"w{self.n}", array))
        return f"w{self.n}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        self.n += 1
        names = [f"v{self.n}_{i}" for i in range(outputs)]
        self.node(kind, inputs, names, domain=domain, **attributes)
        return names[0] if outputs == 1 else names

    def node(
        self, kind: str, inputs: Iterable[str], outputs: Iterable[str], *, domain: str = "", **attributes: Any
    ) -> None:
        self.nodes.append(
            b"".join(part(1, name) for name in inputs)
            + b"".join(part(2, name) for name in outputs)
            + part(4, kind)
            + b"".join(part(5, attribute(name, value)) for name, value in attributes.items())
            + part(7, domain)
        )

    def model(self, inputs: Iterable[bytes], outputs: Iterable[bytes], *, opset: int = 17, ir: int = 8) -> bytes:
        graph = (
            b"".join(part(1, node) for node in self.nodes)
            + part(2, "drafter")
            + b"".join(part(5, weight) for weight in self.weights)
            + b"".join(part(11, value) for value in inputs)
            + b"".join(part(12, value) for value in outputs)
        )
        return number(1, ir) + part(8, part(1, "") + number(2, opset)) + part(7, graph)


def int8(rng: np.random.Generator, rows: int, columns: int) -> tuple[Array, Array]:
    """A random matrix in int8 and its scales, one a column, that keeps a vector's size about as it is."""
    whole = rng.integers(-127, 128, (rows, columns), np.int8)
    return whole, (rng.uniform(0.5, 1.5, columns) / (64 * np.sqrt(rows))).astype(np.float32)


def next_hidden(
    n_hidden: int = 16, n_rows: int = 20, width: int = 12, n_draft: int = 4, *, seed: int = 0, opset: int = 17
) -> bytes:
    """The next-hidden predictor: a linear map plus a gated MLP from (state, embedding) to the next state, rolled out.

    Ids of the graph are 0 to `n_rows`; the last one stands for all other tokens and is never drafted. int8 as
    onnxruntime's own dynamic quantisation writes it.
    """
    rng = np.random.default_rng(seed)
    maker = Maker()
    table, scales = int8(rng, n_hidden, n_rows + 1)
    rows, row_scales = maker.weight(table.T), maker.weight((16 * scales)[:, None])
    matrices = {
        "head": (table[:, :n_rows], 2 * scales[:n_rows]),
        "linear": int8(rng, 2 * n_hidden, n_hidden),
        "gate": int8(rng, 2 * n_hidden, width),
        "up": int8(rng, 2 * n_hidden, width),
        "down": int8(rng, width, n_hidden),
    }
    # Weights are written once: all steps name the same ones.
    names = {key: (maker.weight(whole), maker.weight(scale)) for key, (whole, scale) in matrices.items()}
    none, first = maker.weight(np.zeros((), np.int8)), maker.weight(np.zeros(1, np.int64))
    one_row = maker.weight(np.array([1, n_hidden], np.int64))

    def quantized(x: str) -> list[str]:
        return list(maker.op("DynamicQuantizeLinear", x, outputs=3))

    def times(x: list[str], key: str) -> str:
        sums = maker.op("MatMulInteger", x[0], names[key][0], x[2], none)
        return str(maker.op("Mul", maker.op("Cast", sums, to=1), maker.op("Mul", x[1], names[key][1])))

    state, token = "hidden", "tokens"
    drafted, confidences = [], []
    for _ in range(n_draft):
        row = maker.op("Cast", maker.op("Gather", rows, token), to=1)
        row = maker.op("Reshape", maker.op("Mul", row, maker.op("Gather", row_scales, token)), one_row)
        both = quantized(maker.op("Concat", state, row, axis=1))
        gated = times(both, "gate")
        gated = maker.op("Mul", maker.op("Mul", gated, maker.op("Sigmoid", gated)), times(both, "up"))
        state = maker.op("Add", times(both, "linear"), times(quantized(gated), "down"))
        logits = times(quantized(state), "head")
        token = maker.op("ArgMax", logits, axis=1, keepdims=0)
        drafted.append(token)
        likely = maker.op("ReduceMax", maker.op("Softmax", logits, axis=1), axes=[1], keepdims=0)
        confidences.append(maker.op("Gather", likely, first))
    maker.node("Concat", drafted, ["draft"], axis=0)
    maker.node("Concat", confidences, ["confidence"], axis=0)
    inputs = [port("hidden", 1, (1, n_hidden)), port("tokens", 7, (1, 1))]
    return maker.model(inputs, ports_out(n_draft), opset=opset)


def ports_out(n_draft: int) -> list[bytes]:
    return [port("draft", 7, (n_draft,)), port("confidence", 1, (n_draft,))]


def counting(n_window: int = 3, n_draft: int = 4, confidence: float | Sequence[float] = 0.9, step: int = 1) -> bytes:
    """Reads tokens only and counts on from the newest one."""
    maker = Maker()
    newest = maker.op("Gather", "tokens", maker.weight(np.array([n_window - 1], np.int64)), axis=1)
    flat = maker.op("Reshape", newest, maker.weight(np.array([1], np.int64)))
    maker.node("Add", [flat, maker.weight(step * np.arange(1, n_draft + 1, dtype=np.int64))], ["draft"])
    claims = np.broadcast_to(np.asarray(confidence, np.float32), n_draft)
    maker.node("Identity", [maker.weight(np.ascontiguousarray(claims))], ["confidence"])
    return maker.model([port("tokens", 7, (1, n_window))], ports_out(n_draft))


def write(
    folder: Path,
    graph: bytes,
    *,
    kind: str = "token",
    tokenizer: str = "0" * 64,
    n_vocab: int = 270,
    model: str = "1" * 64,
    n_hidden: int = 16,
    n_tokens: int = 1,
    n_draft: int = 4,
    vocabulary: Array | None = None,
    unknown: int | None = None,
    name: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A package of this graph."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"drafter.onnx": graph, **(files or {})}
    if vocabulary is not None:
        np.save(folder / "vocabulary.npy", vocabulary)
        content["vocabulary.npy"] = (folder / "vocabulary.npy").read_bytes()
    for file, raw in content.items():
        (folder / file).write_bytes(raw)
    card: dict[str, Any] = {
        "format": 1,
        "name": name or folder.name,
        "kind": kind,
        "graph": "drafter.onnx",
        "n_draft": n_draft,
        "target": {"name": "tiny llama", "hash": model, "n_hidden": n_hidden},
        "tokenizer": {"hash": tokenizer, "n_vocab": n_vocab},
        "inputs": {"n_tokens": n_tokens},
        "acceptance": {"rates": [0.5] * n_draft, "measured_on": "made up"},
        "training": {"command": "tests/onnx_maker.py", "seed": 0},
        "files": {file: hashlib.sha256(raw).hexdigest() for file, raw in content.items()},
    }
    if vocabulary is not None:
        card["vocabulary"] = {"file": "vocabulary.npy"} | ({} if unknown is None else {"unknown": unknown})
    (folder / "drafter.toml").write_text(toml(card), encoding="utf-8")
    return folder


def toml(card: Mapping[str, Any]) -> str:
    """A table of scalars, lists and tables of these."""
    lines = [(key, value) for key, value in card.items() if not isinstance(value, Mapping)]
    plain = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in lines]
    tables = [f"[{json.dumps(key)}]\n{toml(value)}" for key, value in card.items() if isinstance(value, Mapping)]
    return "\n".join([*plain, *tables]) + "\n"
