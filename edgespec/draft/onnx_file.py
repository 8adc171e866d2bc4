"""An ONNX graph, read with bounds before any library sees it: nodes, weights, inputs, outputs, the files it names.

Reads the plain graphs that drafters are: no subgraphs, functions, sparse weights. Knows nothing of what nodes compute.

Source: onnx.proto of ONNX 1.16 for the numbers of the fields; protobuf's encoding guide for the wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import DrafterError

OPSETS = range(13, 24)
"""Versions of ONNX's standard operators that mean what `numpy_eval` computes."""
_IR_MAX = 11
_DTYPES = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DIMS = 8
_EXTERNAL = 1

Array = npt.NDArray[Any]
Value = int | memoryview


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `domain` is "" for ONNX's own; empty names of inputs are ones left out."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the graph; None in `shape` is a size that is not fixed, `dtype` None an unknown type."""

    name: str
    dtype: str | None
    shape: tuple[int | None, ...]


@dataclass(slots=True)
class Graph:
    """A graph; nodes in the order in which they are computed."""

    opset: int = 0
    domains: set[str] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Port] = field(default_factory=dict)
    outputs: dict[str, Port] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)
    """Files beside the graph that hold weights."""


def read(data: bytes, files: Mapping[str, Path]) -> Graph:
    """Read a graph whose weights may lie in `files` beside it, and in no others.

    Raises:
        DrafterError: it is damaged, of an unknown version, not plain, or names a file that is not in `files`.
    """
    graph = Graph()
    try:
        _model(memoryview(data), graph, files)
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise DrafterError(f"its graph is damaged or cut off ({error})") from error
    if not graph.nodes:
        raise DrafterError("its graph is damaged or cut off (it has no nodes)")
    return graph


def _model(data: memoryview, graph: Graph, files: Mapping[str, Path]) -> None:
    ir_version, body = 0, []
    for number, value in _fields(data):
        if number == 1:
            ir_version = _whole(value)
        elif number == 8:
            domain, version = "", 0
            for inner, its in _fields(_part(value)):
                domain = _text(its) if inner == 1 else domain
                version = _whole(its) if inner == 2 else version
            graph.domains.add(domain)
            graph.opset = version if domain in ("", "ai.onnx") else graph.opset
        elif number == 7:
            body.append(_part(value))
        elif number in (20, 25):
            raise DrafterError("its graph has functions or training steps, which a drafter must not have")
    if graph.opset not in OPSETS or ir_version > _IR_MAX:
        raise DrafterError(
            f"its graph is of opset {graph.opset}, IR version {ir_version}; known are opsets {OPSETS[0]} to "
            f"{OPSETS[-1]} and IR versions up to {_IR_MAX}: export it anew"
        )
    if len(body) != 1:  # a protobuf parser would merge several
        raise DrafterError(f"its graph is damaged or cut off ({len(body)} graphs)")
    _graph(body[0], graph, files)


def _graph(data: memoryview, graph: Graph, files: Mapping[str, Path]) -> None:
    for number, value in _fields(data):
        if number == 1:
            graph.nodes.append(_node(_part(value), graph, files))
        elif number == 5:
            name, array = _tensor(_part(value), graph, files)
            graph.weights[name] = array
        elif number == 11:
            port = _port(_part(value))
            graph.inputs[port.name] = port
        elif number == 12:
            port = _port(_part(value))
            graph.outputs[port.name] = port
        elif number == 15:
            raise DrafterError("its graph has sparse weights, which a drafter must not have")
    for name in graph.weights:  # files of IR version 3 list weights among the inputs
        graph.inputs.pop(name, None)


def _node(data: memoryview, graph: Graph, files: Mapping[str, Path]) -> Node:
    op = domain = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 4:
            op = _text(value)
        elif number == 5:
            name, found = _attribute(_part(value), graph, files)
            attributes[name] = found
        elif number == 7:
            domain = _text(value)
    return Node(op, "" if domain == "ai.onnx" else domain, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview, graph: Graph, files: Mapping[str, Path]) -> tuple[str, Any]:
    name, found = "", None
    several: list[Any] = []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            found = struct.unpack("<f", _part(value))[0]
        elif number == 3:
            found = _signed(_whole(value))
        elif number == 4:
            found = bytes(_part(value))
        elif number == 5:
            found = _tensor(_part(value), graph, files)[1]
        elif number == 7:
            several += _floats(value)
        elif number == 8:
            several += _wholes(value)
        elif number in (6, 10, 11, 22, 23):
            raise DrafterError("its graph has subgraphs or sparse weights, which a drafter must not have")
    return name, found if found is not None else tuple(several)


def _tensor(data: memoryview, graph: Graph, files: Mapping[str, Path]) -> tuple[str, Array]:
    name, kind, where, raw = "", 0, 0, b""
    dims: list[int] = []
    floats: list[float] = []
    wholes: list[int] = []
    outside: list[tuple[str, str]] = []
    for number, value in _fields(data):
        if number == 1:
            dims += _wholes(value)
        elif number == 2:
            kind = _whole(value)
        elif number == 4:
            floats += _floats(value)
        elif number in (5, 7):
            wholes += _wholes(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = bytes(_part(value))
        elif number == 13:
            entry = {inner: _text(its) for inner, its in _fields(_part(value))}
            outside.append((entry.get(1, ""), entry.get(2, "")))
        elif number == 14:
            where = max(where, _whole(value))
    if kind not in _DTYPES or len(dims) > _MAX_DIMS or any(size < 0 for size in dims):
        raise DrafterError(f"its graph has weights of an unknown kind ({name[:40]!r}, type {kind}, shape {dims})")
    dtype = np.dtype(_DTYPES[kind]).newbyteorder("<")
    n = 1
    for size in dims:
        n *= size
    if where == _EXTERNAL or outside:
        raw = _outside(outside, n * dtype.itemsize, graph, files)
    numbers: list[float] | list[int] = floats if dtype == np.float32 else wholes
    if raw or not numbers:
        if len(raw) != n * dtype.itemsize:
            raise ValueError(f"{name[:40]!r} has {len(raw)} bytes of {n * dtype.itemsize}")
        return name, np.frombuffer(raw, dtype).reshape(dims)
    if len(numbers) != n:
        raise ValueError(f"{name[:40]!r} has {len(numbers)} numbers of {n}")
    if kind == 10:  # halves are written as the whole numbers with the same bits
        return name, np.array(numbers, np.uint16).view("<f2").reshape(dims)
    return name, np.array(numbers).astype(dtype).reshape(dims)


def _outside(entries: list[tuple[str, str]], n_bytes: int, graph: Graph, files: Mapping[str, Path]) -> bytes:
    """Weights from a file beside the graph. Which place counts where two are named is up to the reader: refused."""
    found = dict(entries)
    location = found.get("location", "")
    if len(found) != len(entries) or location not in files:
        raise DrafterError(f"its graph wants weights from {location[:80]!r}, which is no file of the package: refused")
    graph.external.add(location)
    offset = int(found.get("offset", "0"))
    if not 0 <= offset <= files[location].stat().st_size - n_bytes:
        raise ValueError(f"{location} is shorter than its weights")
    with files[location].open("rb") as file:
        file.seek(offset)
        return file.read(n_bytes)


def _port(data: memoryview) -> Port:
    name, dtype = "", None
    shape: list[int | None] = []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for kind, its in _fields(_part(value)):
                if kind == 1:
                    dtype, shape = _tensor_type(_part(its))
    return Port(name, dtype, tuple(shape))


def _tensor_type(data: memoryview) -> tuple[str | None, list[int | None]]:
    dtype = None
    shape: list[int | None] = []
    for number, value in _fields(data):
        if number == 1:
            dtype = _DTYPES.get(_whole(value))
        elif number == 2:
            for _, dim in _fields(_part(value)):
                sizes = [_whole(its) for inner, its in _fields(_part(dim)) if inner == 1]
                shape.append(sizes[0] if sizes else None)
    return dtype, shape


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message.

    Raises:
        IndexError, ValueError: the message is cut off, or not one.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        value: Value
        if kind == _VARINT:
            value, at = _varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif not size:
                raise ValueError(f"field of kind {kind}")
            value, at = data[at : at + size], at + size
            if at > end:
                raise ValueError("a field reaches beyond the end")
        yield key >> 3, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _whole(value: Value) -> int:
    if isinstance(value, memoryview):
        raise ValueError("bytes in place of a number")
    return value


def _part(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def _text(value: Value) -> str:
    return bytes(_part(value)).decode("utf-8")


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _wholes(value: Value) -> list[int]:
    """Repeated whole numbers, packed or not."""
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(_signed(number))
    return found


def _floats(value: Value) -> list[float]:
    """Repeated floats, packed or not."""
    part = _part(value)
    return list(struct.unpack(f"<{len(part) // 4}f", part))
