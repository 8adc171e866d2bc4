"""Writes a fitted model as one ONNX graph that rolls out a whole draft, int8 by column, and the package around it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.draft import package
from edgespec.train.fit import Fitted
from edgespec.train.model import Frame

GRAPH, VOCABULARY = "drafter.onnx", "vocabulary.npy"
_OPSET, _IR = 17, 8
Array = npt.NDArray[Any]


class _Graph:
    """Collects nodes and weights; every operator gives the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def quantized(self, x: str) -> tuple[str, str, str]:
        """A state as uint8, with scale and zero point."""
        names = tuple(f"v{len(self.nodes)}_{part}" for part in ("whole", "scale", "zero"))
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
        return names[0], names[1], names[2]


def quantize(matrix: Array) -> tuple[Array, Array]:
    """A matrix as int8, with a scale for each column."""
    scale = np.maximum(np.abs(matrix).max(0), 1e-8) / 127
    return np.rint(matrix / scale).astype(np.int8), scale.astype(np.float32)


def graph(fitted: Fitted, fixed: Frame, n_draft: int) -> bytes:
    """The model as ONNX: inputs `hidden` and `tokens`, outputs `draft` and `confidence`.

    The output rows are written once: as the last product, and, column by column, as the embedding.
    """
    made, model = _Graph(), fitted.model
    n, width = model.n_hidden, model.width
    inner = model.inner.weight.detach().numpy().T
    table, table_scale = quantize(fixed.rows.T)
    parts = {
        "state": quantize(inner[:n]),
        "token": quantize(inner[n:]),
        "down": quantize(model.down.weight.detach().numpy().T),
    }
    weights = {key: (made.weight(whole), made.weight(scale)) for key, (whole, scale) in parts.items()}
    weights["rows"] = made.weight(table), made.weight(table_scale)
    embedding_scale = made.weight(table_scale * np.float32(model.embedding_scale))
    bias, inner_bias = made.weight(fixed.bias), made.weight(model.inner.bias.detach().numpy())
    none = made.weight(np.zeros((), np.int8))
    one_row, one = made.weight(np.array([1, n], np.int64)), made.weight(np.array([1], np.int64))
    cuts = [made.weight(np.array([at], np.int64)) for at in (0, n, n + width, n + 2 * width)]

    def times(x: tuple[str, str, str], key: str) -> str:
        sums = made.op("Cast", made.op("MatMulInteger", x[0], weights[key][0], x[2], none), to=TensorProto.FLOAT)
        return made.op("Mul", sums, made.op("Mul", x[1], weights[key][1]))

    def cut(x: str, part: int) -> str:
        return made.op("Slice", x, cuts[part], cuts[part + 1], one)

    centred = made.op("Sub", "hidden", made.weight(fixed.mean[None].astype(np.float32)))
    state = made.op("Mul", centred, made.weight((1 / fixed.deviation)[None].astype(np.float32)))
    token = made.op("Reshape", "tokens", one)
    drafted, confidences = [], []
    whole = made.quantized(state)
    for step in range(n_draft):
        row = made.op("Cast", made.op("Gather", weights["rows"][0], token, axis=1), to=TensorProto.FLOAT)
        row = made.op("Mul", made.op("Reshape", row, one_row), made.op("Gather", embedding_scale, token))
        inside = made.op("Add", times(whole, "state"), times(made.quantized(row), "token"))
        inside = made.op("Add", inside, inner_bias)
        gate = cut(inside, 1)
        gated = made.op("Mul", made.op("Mul", gate, made.op("Sigmoid", gate)), cut(inside, 2))
        state = made.op("Add", cut(inside, 0), times(made.quantized(gated), "down"))
        whole = made.quantized(state)
        logits = made.op("Add", times(whole, "rows"), bias)
        token = made.op("ArgMax", logits, axis=1, keepdims=0)
        sharp = made.op("Mul", logits, made.weight(np.array(1 / fitted.temperatures[step], np.float32)))
        likely = made.op("ReduceMax", made.op("Softmax", sharp, axis=1), axes=[1], keepdims=0)
        drafted.append(token)
        confidences.append(likely)
    made.nodes.append(helper.make_node("Concat", drafted, ["draft"], axis=0))
    made.nodes.append(helper.make_node("Concat", confidences, ["confidence"], axis=0))
    inputs = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, (1, n)),
              helper.make_tensor_value_info("tokens", TensorProto.INT64, (1, 1))]  # fmt: skip
    outputs = [helper.make_tensor_value_info("draft", TensorProto.INT64, (n_draft,)),
               helper.make_tensor_value_info("confidence", TensorProto.FLOAT, (n_draft,))]  # fmt: skip
    proto = helper.make_graph(made.nodes, "drafter", inputs, outputs, made.weights)
    opsets = [helper.make_opsetid("", _OPSET)]
    model_proto = helper.make_model(proto, opset_imports=opsets, ir_version=_IR, producer_name="edgespec")
    onnx.checker.check_model(model_proto)
    return bytes(model_proto.SerializeToString())


def write(folder: Path, raw: bytes, ids: npt.NDArray[np.int64], card: Mapping[str, Any]) -> Path:
    """Write a package, checked, in place of one that is there; `card` lacks what is known here: format, kind, files.

    Raises:
        DrafterError: it is no sound package.
        OSError: it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        (made / GRAPH).write_bytes(raw)
        np.save(made / VOCABULARY, ids)
        files = {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in (GRAPH, VOCABULARY)}
        whole = {
            "format": package.FORMAT,
            "name": folder.name,
            "kind": "hidden",
            "graph": GRAPH,
            **card,
            "inputs": {"n_tokens": 1},
            "vocabulary": {"file": VOCABULARY, "unknown": len(ids)},
            "files": files,
        }
        (made / package.CARD).write_text(toml(whole), encoding="utf-8")
        package.load(made)
        if folder.exists():
            shutil.rmtree(folder)
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def toml(table: Mapping[str, Any], above: str = "") -> str:
    """A table of scalars, lists and tables as TOML; JSON writes both of the former as TOML does."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()]
    parts = ["\n".join(lines)] if lines else []
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{above}{json.dumps(key)}"
            parts.append(f"[{name}]\n{toml(value, f'{name}.')}")
    return "\n".join(parts) + ("" if above else "\n")
