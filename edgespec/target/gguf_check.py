"""Is this file a model that can chat? Answers before llama.cpp sees it, and says what it holds.

Knows GGUF's metadata keys. Loads no library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFormatError, ModelNotFoundError
from edgespec.target.gguf_header import Header, Tensor, read_header

_PART = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_KINDS = {
    "adapter": "is a LoRA adapter, not a model: name the model it belongs to",
    "mmproj": "is a vision projector, not a model: name the model it belongs to",
    "imatrix": "holds quantisation statistics, not a model: name the model",
    "vocab": "holds only a vocabulary: get the file with the weights",
}
_EMBEDDING = frozenset({"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert",
                        "neo-bert", "eurobert", "gemma-embedding", "t5encoder"})  # fmt: skip
# Every n-th layer sees the whole context, the others a window. Source: llama.cpp src/models, set_swa_pattern.
_WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "exaone4": 4}
_QUANTS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
           12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
           19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
           26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
           36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GGUFInfo:
    """What a checked model holds. Sizes in bytes; counts of heads are per layer."""

    path: Path
    parts: tuple[Path, ...]
    """All files of the model in order; one unless it is split."""
    arch: str
    name: str
    quant: str
    """Name of the quantisation, such as "Q4_K_M"; the commonest tensor type where the file does not say."""
    n_params: int
    file_bytes: int
    weight_bytes: int
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: tuple[int, ...]
    """Key-value heads by layer; 0 in layers without attention."""
    head_dim_k: int
    head_dim_v: int
    n_ctx_train: int
    n_vocab: int
    has_template: bool
    sliding_window: int
    """Tokens a windowed layer sees; 0 where every layer sees all."""
    windowed: tuple[bool, ...]
    """Which layers see only the window, where known; a layer not known counts as seeing all."""
    recurrent_bytes: int
    """State of one sequence in recurrent layers; 0 where there are none."""
    repack_bytes: int
    """Weights that ggml copies into another layout while loading, on this kind of CPU."""
    fingerprint: str
    """Identifies the content for caches: sha256 over sizes, headers, and samples of the weights."""
    trained: str | None = None
    """Identifies what was trained, in whatever quantisation: sha256 of the final norm; None: there is none."""


def check(path: str | os.PathLike[str], *, repacked_types: frozenset[str] | None = None) -> GGUFInfo:
    """Check that a file is a whole GGUF model which writes text, and describe it.

    `repacked_types` are the weight types the loaded library repacks (`lib.repacked_types()`); None: the most that a
    build for this kind of CPU would.

    Raises:
        ModelNotFoundError: no such file or part, or no permission.
        ModelFormatError: not a GGUF, damaged, cut off, or of another kind.
    """
    first = Path(path)
    headers = _all_parts(first, read_header(first))
    meta = headers[0].meta
    tensors = [tensor for header in headers for tensor in header.tensors]
    arch = _refuse_other_kinds(headers[0], tensors)
    expected = meta.get("split.tensors.count")
    if len(headers) > 1 and isinstance(expected, int) and expected != len(tensors):
        raise ModelFormatError(
            f"{first.name}: its parts hold {len(tensors)} of {expected} tensors: download them again"
        )
    types = _default_repacked() if repacked_types is None else repacked_types
    return _describe(headers, arch, tensors, types)


def _all_parts(path: Path, header: Header) -> list[Header]:
    count = header.meta.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return [header]
    match = _PART.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFormatError(
            f"{path.name} is one of {count} parts: give it back its name, ...-00001-of-{count:05}.gguf"
        )
    names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise ModelNotFoundError(f"{path.name}: {len(missing)} of {count} parts are missing, {missing[0]} first: "
                                 "download them into the same directory")  # fmt: skip
    if header.meta.get("split.no", 0) != 0 or int(match["number"]) != 1:
        raise ModelFormatError(f"{path.name} is a later part of a split model: name the first part, {names[0]}")
    headers = [header, *(read_header(path.with_name(name)) for name in names[1:])]
    for number, part in enumerate(headers):
        if part.meta.get("split.no") != number or part.meta.get("split.count") != count:
            raise ModelFormatError(f"{part.path.name} is not part {number + 1} of this model: download it again")
    return headers


def _refuse_other_kinds(header: Header, tensors: Sequence[Tensor]) -> str:
    name = header.path.name
    arch = header.meta.get("general.architecture")
    kind = header.meta.get("general.type", "model")
    if kind in _KINDS:
        raise ModelFormatError(f"{name} {_KINDS[kind]}")
    if not isinstance(arch, str) or not arch:
        raise ModelFormatError(f"{name} names no architecture, it is not a language model: choose another file")
    if arch == "clip":
        raise ModelFormatError(f"{name} {_KINDS['mmproj']}")
    if not tensors:
        raise ModelFormatError(f"{name} {_KINDS['vocab']}")
    if arch in _EMBEDDING:
        raise ModelFormatError(f"{name} makes embeddings ({arch}), it does not write text: choose a chat model")
    if "tokenizer.ggml.model" not in header.meta:
        raise ModelFormatError(f"{name} has no tokenizer: get a complete GGUF of the model")
    return arch


def _describe(headers: Sequence[Header], arch: str, tensors: Sequence[Tensor], repacked: frozenset[str]) -> GGUFInfo:
    meta, lengths, path = headers[0].meta, headers[0].lengths, headers[0].path
    numbers = _Numbers(path, arch, meta)
    n_layer, n_embd = numbers.need("block_count", 10_000), numbers.need("embedding_length", 1 << 20)
    n_head = numbers.top("attention.head_count")
    n_head_kv = numbers.by_layer("attention.head_count_kv", n_layer, n_head)
    head_dim = n_embd // n_head if n_head else 0
    interval = numbers.get("full_attention_interval")
    if interval > 1:  # the other layers are recurrent and hold no keys
        n_head_kv = tuple(heads if (index + 1) % interval == 0 else 0 for index, heads in enumerate(n_head_kv))
    sliding = numbers.top("attention.sliding_window")
    experts_ff = numbers.get("expert_feed_forward_length") * max(1, numbers.get("expert_used_count"))
    quant = _QUANTS.get(meta.get("general.file_type", -1)) or _commonest_type(tensors)
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return GGUFInfo(
        path=path,
        parts=tuple(header.path for header in headers),
        arch=arch,
        name=str(meta.get("general.name") or path.stem),
        quant=quant,
        n_params=sum(tensor.n_elements for tensor in tensors),
        file_bytes=sum(header.n_bytes for header in headers),
        weight_bytes=sum(tensor.n_bytes for tensor in tensors),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=max(numbers.top("feed_forward_length"), experts_ff),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim_k=numbers.get("attention.key_length") or head_dim,
        head_dim_v=numbers.get("attention.value_length") or head_dim,
        n_ctx_train=numbers.get("context_length"),
        n_vocab=lengths.get("tokenizer.ggml.tokens", 0) or (embedding.shape[1] if embedding else 0),
        has_template=bool(meta.get("tokenizer.chat_template")),
        sliding_window=sliding,
        windowed=_windowed(numbers, arch, n_layer) if sliding else (False,) * n_layer,
        recurrent_bytes=_recurrent_bytes(numbers, n_layer, n_embd, n_head_kv),
        repack_bytes=_repack_bytes(tensors, repacked),
        fingerprint=hashlib.sha256("".join(header.digest for header in headers).encode()).hexdigest()[:32],
        trained=next((header.final_norm for header in headers if header.final_norm is not None), None),
    )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Whole numbers of the metadata under the architecture's prefix."""

    path: Path
    arch: str
    meta: dict[str, Any]

    def get(self, key: str) -> int:
        value = self.meta.get(f"{self.arch}.{key}", 0)
        return value if isinstance(value, int) and value >= 0 else 0

    def top(self, key: str) -> int:
        """The number, or the largest of one given by layer."""
        value = self.meta.get(f"{self.arch}.{key}")
        if isinstance(value, tuple):
            return max((item for item in value if isinstance(item, int)), default=0)
        return self.get(key)

    def need(self, key: str, most: int) -> int:
        value = self.get(key)
        if not 0 < value <= most:
            given = self.meta.get(f"{self.arch}.{key}", "missing")
            raise ModelFormatError(f"{self.path.name} is damaged ({self.arch}.{key} is {given}): download it again")
        return value

    def by_layer(self, key: str, n_layer: int, default: int) -> tuple[int, ...]:
        value = self.meta.get(f"{self.arch}.{key}", default)
        if isinstance(value, tuple):
            padded = [int(item) for item in value[:n_layer]]
            return tuple(padded + [default] * (n_layer - len(padded)))
        return (int(value),) * n_layer


def _commonest_type(tensors: Sequence[Tensor]) -> str:
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.type_name] = totals.get(tensor.type_name, 0) + tensor.n_bytes
    return max(totals, key=totals.__getitem__)


def _windowed(numbers: _Numbers, arch: str, n_layer: int) -> tuple[bool, ...]:
    pattern = numbers.meta.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return tuple(bool(item) for item in pattern[:n_layer]) + (False,) * (n_layer - len(pattern))
    period = numbers.get("attention.sliding_window_pattern") or _WINDOW_PATTERN.get(arch, 1)
    return tuple(period > 1 and index % period < period - 1 for index in range(n_layer))


def _recurrent_bytes(numbers: _Numbers, n_layer: int, n_embd: int, n_head_kv: Sequence[int]) -> int:
    """State of one sequence, in float32. Source: llama.cpp src/llama-hparams.cpp, n_embd_r and n_embd_s."""
    recurrent_layers = n_head_kv.count(0) or n_layer
    inner, state, kernel = (numbers.get(f"ssm.{key}") for key in ("inner_size", "state_size", "conv_kernel"))
    per_layer = 0
    if inner:
        groups = max(1, numbers.get("ssm.group_count"))
        per_layer = max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner
    elif numbers.get("wkv.head_size"):
        per_layer = 2 * n_embd + n_embd * numbers.get("wkv.head_size")
    elif numbers.get("shortconv.l_cache"):
        per_layer = n_embd * max(0, numbers.get("shortconv.l_cache") - 1)
    return 4 * per_layer * recurrent_layers


def _default_repacked() -> frozenset[str]:
    if platform.machine().lower() in ("x86_64", "amd64", "i686"):
        return frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4", "Q2_K"})
    return frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"})


def _repack_bytes(tensors: Sequence[Tensor], types: frozenset[str]) -> int:
    """Matrices of a repacked type whose rows come in eights (fours on some CPUs: counted too).

    The token embedding is looked up, not multiplied, unless it doubles as the output matrix: it is then copied.
    """
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    total = 0
    for tensor in tensors:
        if tensor.type_name not in types or len(tensor.shape) < 2 or tensor.shape[1] % 4:
            continue
        if tensor.name.startswith("token_embd") and not tied:
            continue
        total += tensor.n_bytes
    return total
