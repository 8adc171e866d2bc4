"""Chat templates of the common model families, for models that come without a usable one."""

from __future__ import annotations

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content|trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n' + m.content|trim }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content|trim + eos_token }}{% endif %}{% endfor %}"
)
_ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_GRANITE = (
    "{% for m in messages %}"
    "{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
_RAW = "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"

SOURCES: dict[str, str] = {
    "chatml": _CHATML,
    "llama3": _LLAMA3,
    "gemma": _GEMMA,
    "phi3": _PHI3,
    "granite": _GRANITE,
    "mistral": _MISTRAL,
    "zephyr": _ZEPHYR,
    "raw": _RAW,
}
"""Jinja source by name."""

TOKENS: dict[str, tuple[str, ...]] = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "granite": ("<|start_of_role|>", "<|end_of_role|>"),
    "mistral": ("[INST]", "[/INST]"),
    "zephyr": ("<|user|>", "<|assistant|>"),
    "raw": (),
}
"""Markers that a model of the family knows as single tokens."""

_CHATML_ARCHITECTURES: tuple[str, ...] = (
    *("qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe"),
    *("lfm2", "lfm2moe", "smollm3", "internlm2", "minicpm"),
)

BY_ARCHITECTURE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_CHATML_ARCHITECTURES, ("chatml",)),
    "gemma": ("gemma",),
    "gemma2": ("gemma",),
    "gemma3": ("gemma",),
    "gemma3n": ("gemma",),
    "phi3": ("phi3",),
    "phimoe": ("phi3",),
    "granite": ("granite",),
    "granitemoe": ("granite",),
    "granitehybrid": ("granite",),
    "mistral3": ("mistral",),
    "stablelm": ("zephyr",),
}
"""Families to try first. The architecture "llama" is shared by too many: its vocabulary decides."""
