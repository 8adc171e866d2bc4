"""Tiny GGUF models with random weights and a byte vocabulary, for tests of the real llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_LAYER, N_HEAD, N_HEAD_KV, N_FF, WINDOW = 64, 2, 4, 2, 96, 16
HEAD_DIM = N_EMBD // N_HEAD
N_VOCAB = 270
UNK, BOS, EOS, EOT = 0, 1, 2, 259
"""Control tokens; 3 to 258 are the bytes, what follows 259 are words."""
KINDS = ("llama", "gemma3", "lfm2", "mamba")
"""Dense attention, sliding window, short convolutions with snapshots, recurrent."""


def make(path: Path, kind: str = "llama", *, n_vocab: int = N_VOCAB, meta: Mapping[str, Any] | None = None) -> Path:
    """Write a model of a few hundred KB. `meta` adds keys; the value None leaves a standard key out."""
    extra = dict(meta or {})
    writer = gguf.GGUFWriter(path, kind)
    rng = np.random.default_rng(7)
    for key, value in {**_hyper(kind), **_vocabulary(n_vocab), **extra}.items():
        if value is not None:
            _add(writer, key, value)
    writer.add_tensor("token_embd.weight", _matrix(rng, n_vocab, N_EMBD))
    writer.add_tensor("token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight", _norm(N_EMBD))
    for layer in range(N_LAYER):
        for name, tensor in _layer(kind, layer, rng).items():
            writer.add_tensor(f"blk.{layer}.{name}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _hyper(kind: str) -> dict[str, Any]:
    heads: dict[str, Any] = {
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD_KV,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
    }
    own: dict[str, dict[str, Any]] = {
        "llama": heads,
        "gemma3": {**heads, "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2},
        "lfm2": {**heads, "attention.head_count_kv": [0, N_HEAD_KV], "shortconv.l_cache": 3},
        "mamba": {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * N_EMBD, "ssm.state_size": 8, "ssm.time_step_rank": 4},
    }
    shared: dict[str, Any] = {
        "block_count": N_LAYER,
        "context_length": 2048,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "vocab_size": N_VOCAB,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    keys = {f"{kind}.{key}": value for key, value in {**shared, **own[kind]}.items() if key != "vocab_size"}
    return {"general.name": f"tiny {kind}", "general.file_type": 0, **keys}


def _vocabulary(n_vocab: int) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|eot_id|>"]
    kinds = [2, 3, 3, *([6] * 256), 3]
    tokens += [f"▁w{index}" for index in range(len(tokens), n_vocab)]
    kinds += [1] * (n_vocab - len(kinds))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(index) for index in range(n_vocab)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.unknown_token_id": UNK,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.normal(0, 2 / np.sqrt(columns), (rows, columns)).astype(np.float32)


def _norm(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(size, np.float32)


def _layer(kind: str, index: int, rng: np.random.Generator) -> dict[str, Any]:
    norm = {"attn_norm.weight": _norm(N_EMBD)}
    if kind == "mamba":
        return {**norm, **_mamba(rng)}
    ffn = {
        "ffn_norm.weight": _norm(N_EMBD),
        "ffn_gate.weight": _matrix(rng, N_FF, N_EMBD),
        "ffn_up.weight": _matrix(rng, N_FF, N_EMBD),
        "ffn_down.weight": _matrix(rng, N_EMBD, N_FF),
    }
    if kind == "lfm2" and index == 0:
        conv = {
            "shortconv.conv.weight": _matrix(rng, N_EMBD, 3),
            "shortconv.in_proj.weight": _matrix(rng, 3 * N_EMBD, N_EMBD),
            "shortconv.out_proj.weight": _matrix(rng, N_EMBD, N_EMBD),
        }
        return {**norm, **conv, **ffn}
    attention = {
        "attn_q.weight": _matrix(rng, N_EMBD, N_EMBD),
        "attn_k.weight": _matrix(rng, N_HEAD_KV * HEAD_DIM, N_EMBD),
        "attn_v.weight": _matrix(rng, N_HEAD_KV * HEAD_DIM, N_EMBD),
        "attn_output.weight": _matrix(rng, N_EMBD, N_EMBD),
    }
    more: dict[str, Any] = {}
    if kind in ("gemma3", "lfm2"):
        more |= {"attn_q_norm.weight": _norm(HEAD_DIM), "attn_k_norm.weight": _norm(HEAD_DIM)}
    if kind == "gemma3":
        more |= {"post_attention_norm.weight": _norm(N_EMBD), "post_ffw_norm.weight": _norm(N_EMBD)}
    return {**norm, **attention, **ffn, **more}


def _mamba(rng: np.random.Generator) -> dict[str, Any]:
    inner, state, rank = 2 * N_EMBD, 8, 4
    return {
        "ssm_in.weight": _matrix(rng, 2 * inner, N_EMBD),
        "ssm_conv1d.weight": _matrix(rng, inner, 4),
        "ssm_conv1d.bias": np.zeros(inner, np.float32),
        "ssm_x.weight": _matrix(rng, rank + 2 * state, inner),
        "ssm_dt.weight": _matrix(rng, inner, rank),
        "ssm_dt.bias": np.zeros(inner, np.float32),
        "ssm_a": -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)),
        "ssm_d": np.ones(inner, np.float32),
        "ssm_out.weight": _matrix(rng, N_EMBD, inner),
    }
