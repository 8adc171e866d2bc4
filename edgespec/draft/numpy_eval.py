"""Computes a drafter's graph with numpy, where onnxruntime is not to be had (musl, some Termux).

The operators that drafters are made of, for batches of one. int8 products are exact, as onnxruntime's are: whole
numbers are held as float32, which BLAS multiplies fast, and their sums stay below 2^24.

Source: ONNX's Operators.md, opsets 13 to 23, for what each operator means.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.draft.onnx_file import Array, Graph, Node
from edgespec.errors import DrafterError

Attributes = Mapping[str, Any]
Compute = Callable[..., Any]
_Step = tuple[Compute, Attributes, tuple[str, ...], tuple[str, ...]]
_F32 = np.float32


def _blas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's functions that tell and set its threads, where numpy is linked with it; else None.

    numpy's wheels carry it with a prefix and a suffix; the symbols are looked up in what numpy's own module depends on.
    """
    module = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    try:
        library = ctypes.CDLL(str(getattr(module, "__file__", None)))
    except OSError:
        return None
    for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
        try:
            tell = library[f"{prefix}openblas_get_num_threads{suffix}"]
            put = library[f"{prefix}openblas_set_num_threads{suffix}"]
        except AttributeError:
            continue
        tell.restype, tell.argtypes, put.restype, put.argtypes = ctypes.c_int, [], None, [ctypes.c_int]
        return tell, put
    return None


_threads = _blas()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Products on the calling thread alone: the library's others would spin on the cores of the target's team.

    Measured beside other programs on two cores: 0.4 ms a token alone, 50 ms in the middle with the library's team.
    """
    n = _threads[0]() if _threads is not None else 1
    if _threads is None or n == 1:
        yield
        return
    _threads[1](1)
    try:
        yield
    finally:
        _threads[1](n)


class NumpyRunner:
    """A graph ready to be computed. Holds no state between calls: threads may share it."""

    name = "numpy"

    def __init__(self, graph: Graph) -> None:
        """Bind each node to its operator.

        Raises:
            DrafterError: the graph has an operator that is not known here.
        """
        self._constants: dict[str, Array] = dict(graph.weights)
        self._steps: list[_Step] = []
        for node in graph.nodes:
            self._bind(node)
        read = {name for _, _, inputs, _ in self._steps for name in inputs} | set(graph.outputs)
        self._constants = {name: value for name, value in self._constants.items() if name in read}

    def _bind(self, node: Node) -> None:
        if node.op == "Constant":
            value = next(iter(node.attributes.values()), None)
            whole = next(iter(node.attributes), "").startswith("value_int")
            made = value if isinstance(value, np.ndarray) else np.asarray(value, np.int64 if whole else _F32)
            self._constants[node.outputs[0]] = made
            return
        found = _OPERATORS.get(node.op) if not node.domain else None
        if found is None:
            raise DrafterError(
                f"numpy cannot compute its graph (operator {node.domain or 'ai.onnx'}.{node.op}): install onnxruntime"
            )
        inputs = self._multipliable(node.inputs) if node.op == "MatMulInteger" else node.inputs
        step = (found, node.attributes, inputs, node.outputs)
        if all(name in self._constants or not name for name in inputs):
            _compute(step, self._constants)  # once and not in every call
        else:
            self._steps.append(step)

    def _multipliable(self, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """The inputs of a product with int8 weights as floats: a copy four times as large, which BLAS multiplies."""
        b, zero = inputs[1], inputs[3] if len(inputs) > 3 else ""
        known = self._constants
        if b not in known or (zero and zero not in known):
            return inputs
        name = f"{b}-{zero}"  # several products may share one
        if name not in known:
            known[name] = known[b].astype(_F32) - (known[zero].astype(_F32) if zero else _F32(0))
        return (inputs[0], name, inputs[2] if len(inputs) > 2 else "")

    def run(self, feeds: Mapping[str, Array]) -> tuple[Array, Array]:
        """The outputs `draft` and `confidence`.

        Raises:
            DrafterError: shapes, types or names do not fit.
        """
        known = {**self._constants, **feeds}
        with _one_thread(), np.errstate(all="ignore"):  # what is no number is found in the answer
            for step in self._steps:
                _compute(step, known)
        return known["draft"], known["confidence"]


def _compute(step: _Step, known: dict[str, Any]) -> None:
    compute, attributes, inputs, outputs = step
    try:
        made = compute(attributes, *[known[name] if name else None for name in inputs])
        if len(outputs) == 1:
            known[outputs[0]] = made
        else:
            known.update(zip(outputs, made, strict=True))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise DrafterError(f"numpy cannot compute {', '.join(outputs)} of its graph ({text})") from error


def _matmul_integer(
    _: Attributes, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    left = a.astype(_F32) if a_zero is None else a.astype(_F32) - a_zero.astype(_F32)
    right = b if b.dtype == _F32 else b.astype(_F32)
    if b_zero is not None:
        right = right - b_zero.astype(_F32)
    product: Array = left @ right
    return product


def _quantize(_: Attributes, x: Array) -> tuple[Array, Array, Array]:
    low, high = min(_F32(0), x.min()), max(_F32(0), x.max())
    scale = _F32((high - low) / _F32(255)) if high > low else _F32(1)
    zero = np.rint(-low / scale)
    zero = _F32(0) if not zero > 0 else min(zero, _F32(255))
    whole = x / scale
    np.rint(whole, out=whole)
    whole += zero
    np.minimum(whole, 255, out=whole)
    np.maximum(whole, 0, out=whole)
    return whole.astype(np.uint8), np.asarray(scale, _F32), np.asarray(zero, np.uint8)


def _dequantize(attributes: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Array:
    shape = [1] * x.ndim
    if scale.ndim == 1 and scale.size > 1:
        shape[attributes.get("axis", 1)] = scale.size
        scale = scale.reshape(shape)
        zero = None if zero is None else zero.reshape(shape)
    return (x.astype(_F32) - (0 if zero is None else zero.astype(_F32))) * scale


def _gemm(attributes: Attributes, a: Array, b: Array, c: Array | None = None) -> Array:
    a, b = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
    product = a @ b * _F32(attributes.get("alpha", 1.0))
    return product if c is None else product + c * _F32(attributes.get("beta", 1.0))


def _sigmoid(_: Attributes, x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _softmax(attributes: Attributes, x: Array) -> Array:
    axis = attributes.get("axis", -1)
    powers = np.exp(x - x.max(axis, keepdims=True))
    shares: Array = powers / powers.sum(axis, keepdims=True)
    return shares


def _argmax(attributes: Attributes, x: Array) -> Array:
    if attributes.get("select_last_index"):
        raise ValueError("select_last_index is not known")
    places: Array = np.argmax(x, attributes.get("axis", 0), keepdims=bool(attributes.get("keepdims", 1)))
    return places


def _reduce(function: Callable[..., Any]) -> Compute:
    def compute(attributes: Attributes, x: Array, axes: Array | None = None) -> Array:
        along = attributes.get("axes") if axes is None else axes.tolist()
        keep = bool(attributes.get("keepdims", 1))
        return np.asarray(function(x, axis=tuple(along) if along else None, keepdims=keep))

    return compute


def _gather(attributes: Attributes, x: Array, indices: Array) -> Array:
    return x.take(indices, attributes.get("axis", 0))


def _slice(
    _: Attributes, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    n = len(starts)
    places = [slice(None)] * x.ndim
    for i in range(n):
        step = 1 if steps is None else int(steps[i])
        if step < 1:
            raise ValueError("a step below 1 is not known")
        places[i if axes is None else int(axes[i])] = slice(int(starts[i]), int(ends[i]), step)
    return x[tuple(places)]


def _reshape(_: Attributes, x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape.tolist())])


def _squeeze(_: Attributes, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze(None if axes is None else tuple(axes.tolist()))


def _unsqueeze(_: Attributes, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(axes.tolist()))


def _transpose(attributes: Attributes, x: Array) -> Array:
    return x.transpose(attributes.get("perm") or None)


_KINDS = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}


def _cast(attributes: Attributes, x: Array) -> Array:
    to = _KINDS[attributes["to"]]
    return x if x.dtype == to else x.astype(to)


def _concat(attributes: Attributes, *parts: Array) -> Array:
    return np.concatenate(parts, attributes["axis"])


def _elementwise(function: Callable[..., Any]) -> Compute:
    return lambda _, *inputs: function(*inputs)


_OPERATORS: dict[str, Compute] = {
    "Add": _elementwise(np.add), "Sub": _elementwise(np.subtract), "Mul": _elementwise(np.multiply),
    "Div": _elementwise(np.divide), "Pow": _elementwise(np.power), "Sqrt": _elementwise(np.sqrt),
    "Exp": _elementwise(np.exp), "Tanh": _elementwise(np.tanh), "Neg": _elementwise(np.negative),
    "Reciprocal": _elementwise(np.reciprocal), "Relu": lambda _, x: np.maximum(x, 0),
    "Identity": _elementwise(lambda x: x), "MatMul": _elementwise(np.matmul), "Where": _elementwise(np.where),
    "Equal": _elementwise(np.equal), "Less": _elementwise(np.less), "Greater": _elementwise(np.greater),
    "Sigmoid": _sigmoid, "Softmax": _softmax, "ArgMax": _argmax, "Gemm": _gemm, "Gather": _gather, "Slice": _slice,
    "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose, "Cast": _cast,
    "Concat": _concat, "ReduceMax": _reduce(np.max), "ReduceSum": _reduce(np.sum), "ReduceMean": _reduce(np.mean),
    "DynamicQuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "MatMulInteger": _matmul_integer,
}  # fmt: skip


def operators() -> Sequence[str]:
    """Names of the operators that an exporter may use."""
    return tuple(_OPERATORS)
