"""Tiny GGUF models with random weights and a byte vocabulary, for tests of the real llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_LAYER, N_HEAD, N_HEAD_KV, N_FF, WINDOW = 64, 2, 4, 2, 96, 16
HEAD_DIM = N_EMBD // N_HEAD
N_EXPERT, N_LORA = 4, 8
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * N_EMBD, "ssm.state_size": 8, "ssm.time_step_rank": 4}
N_VOCAB = 270
UNK, BOS, EOS, EOT = 0, 1, 2, 259
"""Control tokens; 3 to 258 are the bytes, what follows 259 are words."""
KINDS = ("llama", "gemma3", "lfm2", "mamba")
"""One architecture for each kind of memory: dense attention, sliding window, recurrent with snapshots, recurrent."""
ARCHITECTURES = (*KINDS, "qwen2", "qwen3", "phi3", "qwen3moe", "granitehybrid", "rwkv7")
"""All that can be made. Beside the above: biases, normed queries and keys, fused matrices, a mixture of experts,
attention between Mamba-2 layers, and RWKV."""


def make(
    path: Path,
    kind: str = "llama",
    *,
    n_vocab: int = N_VOCAB,
    meta: Mapping[str, Any] | None = None,
    output_scale: float | None = None,
) -> Path:
    """Write a model of a few hundred KB.

    `meta` adds keys; the value None leaves a standard key out. `output_scale` gives the model an output matrix of its
    own, of that many times the usual size: likelier best tokens at a temperature. None: the embeddings, where they do.
    """
    extra = dict(meta or {})
    writer = gguf.GGUFWriter(path, kind)
    rng = np.random.default_rng(7)
    for key, value in {**_hyper(kind), **_vocabulary(n_vocab), **extra}.items():
        if value is not None:
            _add(writer, key, value)
    writer.add_tensor("token_embd.weight", _matrix(rng, n_vocab, N_EMBD))
    writer.add_tensor("token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight", _norm(N_EMBD))
    if kind == "rwkv7":
        writer.add_tensor("output_norm.bias", _zeros(N_EMBD))
        writer.add_tensor("token_embd_norm.weight", _norm(N_EMBD))
        writer.add_tensor("token_embd_norm.bias", _zeros(N_EMBD))
    if output_scale is not None or kind == "rwkv7":
        output = (output_scale or 1.0) * _matrix(np.random.default_rng(8), n_vocab, N_EMBD)
        writer.add_tensor("output.weight", output)
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
        "mamba": SSM,
        "qwen2": heads,
        "qwen3": heads,
        "phi3": heads,
        "qwen3moe": {
            **heads,
            "expert_count": N_EXPERT,
            "expert_used_count": 2,
            "expert_feed_forward_length": N_FF,
        },
        "granitehybrid": {**heads, "attention.head_count_kv": [0, N_HEAD_KV], **SSM, "ssm.group_count": 1},
        "rwkv7": {
            "attention.layer_norm_epsilon": 1e-5,
            "wkv.head_size": N_EMBD,  # ggml's AVX-512 kernel reads and writes past narrower heads than 64
            "token_shift_count": 2,
            "attention.decay_lora_rank": N_LORA,
            "attention.iclr_lora_rank": N_LORA,
            "attention.value_residual_mix_lora_rank": N_LORA,
            "attention.gate_lora_rank": N_LORA,
            "attention.head_count": 0,
        },
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
    # A name with "phi3" in it makes llama.cpp look for tokens of that family.
    name = "fused" if kind == "phi3" else kind
    return {"general.name": f"tiny {name}", "general.file_type": 0, **keys}


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


def _zeros(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(size, np.float32)


def _norm(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(size, np.float32)


def _layer(kind: str, index: int, rng: np.random.Generator) -> dict[str, Any]:
    norm = {"attn_norm.weight": _norm(N_EMBD)}
    if kind == "mamba":
        return {**norm, **_mamba(rng)}
    if kind == "rwkv7":
        return _rwkv(rng)
    ffn = {"ffn_norm.weight": _norm(N_EMBD), **_feed_forward(kind, rng)}
    if kind == "granitehybrid" and index == 0:
        return {**norm, **_mamba2(rng), **ffn}
    if kind == "lfm2" and index == 0:
        conv = {
            "shortconv.conv.weight": _matrix(rng, N_EMBD, 3),
            "shortconv.in_proj.weight": _matrix(rng, 3 * N_EMBD, N_EMBD),
            "shortconv.out_proj.weight": _matrix(rng, N_EMBD, N_EMBD),
        }
        return {**norm, **conv, **ffn}
    n_kv = N_HEAD_KV * HEAD_DIM
    attention = {
        "attn_q.weight": _matrix(rng, N_EMBD, N_EMBD),
        "attn_k.weight": _matrix(rng, n_kv, N_EMBD),
        "attn_v.weight": _matrix(rng, n_kv, N_EMBD),
        "attn_output.weight": _matrix(rng, N_EMBD, N_EMBD),
    }
    more: dict[str, Any] = {}
    if kind == "phi3":
        fused = [attention.pop(f"attn_{part}.weight") for part in "qkv"]
        more["attn_qkv.weight"] = np.concatenate(fused)
    if kind == "qwen2":
        more |= {f"attn_{part}.bias": _matrix(rng, 1, n)[0] for part, n in (("q", N_EMBD), ("k", n_kv), ("v", n_kv))}
    if kind in ("gemma3", "lfm2", "qwen3", "qwen3moe"):
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


def _feed_forward(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    if kind == "phi3":
        return {"ffn_up.weight": _matrix(rng, 2 * N_FF, N_EMBD), "ffn_down.weight": _matrix(rng, N_EMBD, N_FF)}
    if kind == "qwen3moe":
        wide, narrow = (N_EXPERT, N_FF, N_EMBD), (N_EXPERT, N_EMBD, N_FF)
        return {
            "ffn_gate_inp.weight": _matrix(rng, N_EXPERT, N_EMBD),
            "ffn_gate_exps.weight": _matrix(rng, N_EXPERT * N_FF, N_EMBD).reshape(wide),
            "ffn_up_exps.weight": _matrix(rng, N_EXPERT * N_FF, N_EMBD).reshape(wide),
            "ffn_down_exps.weight": _matrix(rng, N_EXPERT * N_EMBD, N_FF).reshape(narrow),
        }
    return {
        "ffn_gate.weight": _matrix(rng, N_FF, N_EMBD),
        "ffn_up.weight": _matrix(rng, N_FF, N_EMBD),
        "ffn_down.weight": _matrix(rng, N_EMBD, N_FF),
    }


def _mamba2(rng: np.random.Generator) -> dict[str, Any]:
    inner, state, heads = 2 * N_EMBD, 8, 4
    mixed = inner + 2 * state
    return {
        "ssm_in.weight": _matrix(rng, inner + mixed + heads, N_EMBD),
        "ssm_conv1d.weight": _matrix(rng, mixed, 4),
        "ssm_conv1d.bias": _zeros(mixed),
        "ssm_dt.bias": _zeros(heads),
        "ssm_a": -np.arange(1, heads + 1, dtype=np.float32).reshape(heads, 1) / heads,
        "ssm_d": np.ones((heads, 1), np.float32),
        "ssm_norm.weight": np.ones((1, inner), np.float32),
        "ssm_out.weight": _matrix(rng, N_EMBD, inner),
    }


def _rwkv(rng: np.random.Generator) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
        tensors |= {f"{name}.weight": _norm(N_EMBD), f"{name}.bias": _zeros(N_EMBD)}
    for part in "wav":
        tensors[f"time_mix_{part}0.weight"] = _matrix(rng, 1, N_EMBD)[0]
    for part in "wavg":
        tensors[f"time_mix_{part}1.weight"] = _matrix(rng, N_LORA, N_EMBD)
        tensors[f"time_mix_{part}2.weight"] = _matrix(rng, N_EMBD, N_LORA)
    for name in ("k_k", "k_a", "r_k"):
        tensors[f"time_mix_{name}.weight"] = rng.uniform(0.5, 1.0, N_EMBD).astype(np.float32)
    for name in ("key", "value", "receptance", "output"):
        tensors[f"time_mix_{name}.weight"] = _matrix(rng, N_EMBD, N_EMBD)
    return {
        **tensors,
        "time_mix_lerp_fused.weight": rng.uniform(0.0, 1.0, (6, 1, 1, N_EMBD)).astype(np.float32),
        "channel_mix_lerp_k.weight": rng.uniform(0.0, 1.0, (1, 1, N_EMBD)).astype(np.float32),
        "channel_mix_key.weight": _matrix(rng, N_FF, N_EMBD),
        "channel_mix_value.weight": _matrix(rng, N_EMBD, N_FF),
    }
