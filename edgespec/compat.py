"""`Llama` for programs that were written for llama-cpp-python's: change the import, and answers are drafted.

    from edgespec.compat import Llama  # instead of: from llama_cpp import Llama

Arguments and dicts are its own; what cannot be had is refused, or left out and told in `Llama.notes`.
Source: llama_cpp/llama.py, llama_types.py and llama_chat_format.py of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from edgespec import schema as schemas
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.errors import EdgespecError
from edgespec.fields import Fields
from edgespec.interfaces import Report, Result
from edgespec.options import refuse_unknown
from edgespec.server import schema, shape
from edgespec.server.errors import RequestError

_IGNORED: Mapping[str, tuple[object, str]] = {
    "n_gpu_layers": (0, "edgespec computes on the processor"),
    "split_mode": (1, "edgespec computes on the processor"),
    "main_gpu": (0, "edgespec computes on the processor"),
    "tensor_split": (None, "edgespec computes on the processor"),
    "offload_kqv": (True, "edgespec computes on the processor"),
    "op_offload": (None, "edgespec computes on the processor"),
    "n_batch": (512, "edgespec chooses it by the memory"),
    "n_ubatch": (512, "edgespec chooses it by the memory"),
    "use_mlock": (False, "edgespec does not lock memory"),
    "numa": (False, "edgespec places its threads itself"),
    "flash_attn": (False, "llama.cpp chooses it by the model"),
    "swa_full": (None, "edgespec takes rejected tokens back in other ways"),
    "logits_all": (False, "log-probabilities need no such buffer here"),
    "draft_model": (None, "edgespec drafts by itself; a drafter of your own goes to edgespec.Engine"),
    "chat_format": (None, "the template in the model's file is used"),
    "no_perf": (False, "edgespec measures for itself"),
    "spm_infill": (False, "there is no infilling here"),
}
"""Argument to the default that asks for nothing, and why another value has no effect."""
_REFUSED: Mapping[str, object] = {
    "vocab_only": False, "embedding": False, "kv_overrides": None, "rope_scaling_type": -1, "pooling_type": -1,
    "attention_type": -1, "rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_orig_ctx": 0, "lora_base": None,
    "lora_scale": 1.0, "lora_path": None, "chat_handler": None, "tokenizer": None,
}  # fmt: skip
"""Argument to the default that asks for nothing; another value would change what comes out."""
_ANY_SEED = 0xFFFFFFFF
_KV_TYPES = {0: "f32", 1: "f16", 8: "q8_0", 30: "bf16"}
"""Source: enum ggml_type."""
_DEFAULTS: Mapping[str, Any] = {
    "top_p": 0.95, "top_k": 40, "min_p": 0.05, "typical_p": 1.0, "stop": None, "stream": False, "seed": None,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "repeat_penalty": 1.0, "tfs_z": 1.0, "mirostat_mode": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "model": None, "logits_processor": None, "stopping_criteria": None,
    "grammar": None, "logit_bias": None, "logprobs": None,
}  # fmt: skip
_CHAT = {
    **_DEFAULTS, "temperature": 0.2, "max_tokens": None, "functions": None, "function_call": None, "tools": None,
    "tool_choice": None, "response_format": None, "top_logprobs": None,
}  # fmt: skip
_TEXT = {**_DEFAULTS, "temperature": 0.8, "echo": False}
_MISSING = frozenset({
    "embed", "create_embedding", "save_state", "load_state", "eval", "sample", "generate", "set_cache", "ctx", "model",
    "create_chat_completion_openai_v1", "eval_tokens", "eval_logits", "scores", "input_ids",
})  # fmt: skip


class LlamaGrammar:
    """A grammar for `grammar=`."""

    def __init__(self, grammar: str) -> None:
        """Use `from_string` and its like."""
        self._grammar = grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> Self:
        """From GBNF."""
        del verbose
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> Self:
        """From a file of GBNF."""
        return cls.from_string(Path(file).read_text(encoding="utf-8"), verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> Self:
        """From JSON schema.

        Raises:
            ConstraintError: not a schema, or one that a grammar cannot guarantee.
        """
        return cls.from_string(schemas.to_grammar(json_schema), verbose)


class Llama:
    """A model with the methods of `llama_cpp.Llama`. Threads may share it; their answers take turns."""

    def __init__(
        self,
        model_path: str,
        *,
        n_ctx: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        seed: int = _ANY_SEED,
        use_mmap: bool = True,
        last_n_tokens_size: int = 64,
        type_k: int | None = None,
        type_v: int | None = None,
        verbose: bool = True,
        **others: Any,
    ) -> None:
        """Load a model: a path, or a name or address as `edgespec` knows it.

        `n_ctx` 0: edgespec chooses. `verbose` is taken and says nothing: see `notes`. `others` are the remaining
        arguments of `llama_cpp.Llama`.

        Raises:
            TypeError: an argument is unknown.
            ValueError: one cannot be had, or the model cannot be loaded.
        """
        del verbose
        try:
            refuse_unknown(others, (*_IGNORED, *_REFUSED))
        except EdgespecError as error:
            raise TypeError(str(error)) from None
        refused = [name for name, neutral in _REFUSED.items() if others.get(name, neutral) != neutral]
        if refused:
            raise ValueError(f"{refused[0]} would change what comes out, and is not offered by edgespec: leave it out")
        self._ignored = tuple(
            f"{name} has no effect: {why}"
            for name, (neutral, why) in _IGNORED.items()
            if others.get(name, neutral) != neutral
        )
        kinds = [1 if kind is None else kind for kind in (type_k, type_v)]
        if not set(kinds) <= set(_KV_TYPES):
            raise ValueError(f"type_k and type_v must be of {sorted(_KV_TYPES)}: {', '.join(_KV_TYPES.values())}")
        asked = (type_k, type_v) != (None, None)
        self.model_path = model_path
        self._seed = seed
        self.last_report: Report | None = None
        """What edgespec did for the last answer that was finished."""
        config = EngineConfig(
            n_ctx=n_ctx or None, threads=n_threads, threads_batch=n_threads_batch, mmap=use_mmap,
            penalty_last_n=last_n_tokens_size, kv_type="/".join(_KV_TYPES[kind] for kind in kinds) if asked else None,
            think="show",
        )  # fmt: skip
        with _value_errors():
            self._engine = Engine.open(model_path, config)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **_: Any) -> NoReturn:
        """Not offered.

        Raises:
            ValueError: saying what to write instead.
        """
        wanted = filename if filename and "*" not in filename else "FILE.gguf"
        raise ValueError(f'edgespec fetches files by their address: Llama("hf:{repo_id}/{wanted}") does that')

    @property
    def notes(self) -> tuple[str, ...]:
        """Which arguments had no effect and why, and what the engine has to say; one line each."""
        return (*self._ignored, *self._engine.notes)

    @property
    def engine(self) -> Engine:
        """The engine behind it."""
        return self._engine

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """The answer to a conversation: a dict, or with `stream=True` an iterator of them.

        Raises:
            TypeError: an option is unknown.
            ValueError: an option cannot be had or has no such value, or the prompt does not fit the context.
        """
        given = self._given(options, _CHAT)
        functions, choice = given.pop("functions"), given.pop("function_call")
        if functions is not None:
            given["tools"] = [{"type": "function", "function": function} for function in functions]
        if choice is not None:
            named = isinstance(choice, Mapping)
            given["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
        given["messages"] = [dict(message) for message in messages]
        with _value_errors():
            body = Fields(self._body(given))
            asked = schema.chat(body, self._engine, schema.Defaults((self.model_path,)))
        piece = self._engine.target.piece
        shaper = shape.ChatShaper(piece, logprobs=asked.logprobs, calls=asked.calls, thinking=None)
        answer = _Answer(self, asked, shaper, str(given["model"] or self.model_path))
        return answer.chunks() if asked.stream else answer.whole()

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        **options: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """How a text goes on: a dict, or with `stream=True` an iterator of them.

        Raises:
            TypeError: an option is unknown.
            ValueError: as `create_chat_completion`.
        """
        if suffix is not None:
            raise ValueError("suffix: edgespec does not fill in; leave it out")
        given = self._given({**options, "max_tokens": max_tokens}, {**_TEXT, "max_tokens": None})
        given["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        with _value_errors():
            body = Fields(self._body(given))
            asked = schema.text(body, self._engine, schema.Defaults((self.model_path,)))
        echo = asked.echo[0] if asked.echo else ""
        shaper = shape.TextShaper(self._engine.target.piece, logprobs=asked.logprobs, echo=echo)
        answer = _Answer(self, asked, shaper, str(given["model"] or self.model_path))
        return answer.chunks() if asked.stream else answer.whole()

    __call__ = create_completion

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 text; a start token that is written in it is not put before it once more."""
        return self._engine.target.encode(text.decode(), special=special, bos=add_bos)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of token ids; `special`: control tokens as they are written."""
        del prev_tokens
        vocab = self._engine.target.vocab
        data = b"".join(vocab.written(t).encode() if special and not vocab.piece(t) else vocab.piece(t) for t in tokens)
        return data[1:] if tokens and tokens[0] == vocab.bos and data.startswith(b" ") else data

    def token_eos(self) -> int:
        """The token that ends a text."""
        return self._engine.target.vocab.eos

    def token_bos(self) -> int:
        """The token that begins a text."""
        return self._engine.target.vocab.bos

    def n_ctx(self) -> int:
        """Tokens of the context."""
        return self._engine.n_ctx

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._engine.target.n_vocab

    def set_seed(self, seed: int) -> None:
        """The seed of answers that name none."""
        self._seed = seed

    def reset(self) -> None:
        """Nothing to do: each answer begins with its prompt, and what of it is cached changes no text."""

    def close(self) -> None:
        """Free the model. May be called twice."""
        self._engine.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        """Say what is missing.

        Raises:
            AttributeError: always.
        """
        more = ": edgespec.compat offers completions and tokens only" if name in _MISSING else ""
        raise AttributeError(f"Llama has no attribute {name!r}{more}")

    @staticmethod
    def _given(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        try:
            refuse_unknown(options, tuple(defaults))
        except EdgespecError as error:
            raise TypeError(str(error)) from None
        return {**defaults, **options}

    def _body(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The request in OpenAI's notation, as the server takes it."""
        body = dict(given)
        del body["model"]
        for name in ("logits_processor", "stopping_criteria"):
            if body.pop(name):
                raise ValueError(f"{name}: edgespec does not call Python for each token; leave it out")
        if body.pop("tfs_z") != 1.0:
            raise ValueError("tfs_z: llama.cpp no longer has it; leave it out")
        body["mirostat"] = body.pop("mirostat_mode")
        body["top_k"] = max(0, body["top_k"])
        if body["max_tokens"] is None or body["max_tokens"] <= 0:
            body["max_tokens"] = self.n_ctx()
        if body["seed"] is None:
            body["seed"] = None if self._seed in (_ANY_SEED, -1) else self._seed
        if body["grammar"] is not None:
            body["grammar"] = getattr(body["grammar"], "_grammar", body["grammar"])
        if body["logit_bias"] is not None:
            body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
        return body


class _Answer:
    """One answer in llama-cpp-python's dicts."""

    def __init__(self, llama: Llama, asked: schema.Asked, shaper: shape.Shaper, model: str) -> None:
        self._llama, self._asked, self._shaper = llama, asked, shaper
        self._kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(16)}",
            "object": self._kind,
            "created": int(datetime.now(UTC).timestamp()),
            "model": model,
        }

    def whole(self) -> dict[str, Any]:
        with _value_errors():
            for _ in self._parts():
                pass
        result = self._result
        choice = self._shaper.whole()
        message = choice.get("message")
        if message is not None:
            message.pop("refusal", None)
            if message.get("tool_calls"):
                message["function_call"] = dict(message["tool_calls"][0]["function"])
        ended = bool(result.tokens) and result.tokens[-1] in self._llama.engine.target.eog
        n_new = result.usage.completion_tokens - ended  # llama-cpp-python does not count the token that ends an answer
        n_prompt = result.usage.prompt_tokens
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}
        return {**self._head, "choices": [{"index": 0, **choice, "finish_reason": self._reason}], "usage": usage}

    def chunks(self) -> Iterator[dict[str, Any]]:
        with _value_errors():
            if self._asked.chat:
                yield self._chunk({"delta": {"role": "assistant"}, "logprobs": None})
            for part in self._parts():
                yield self._chunk(part)
        empty: dict[str, Any] = {"delta": {}} if self._asked.chat else {"text": ""}
        yield self._chunk({**empty, "logprobs": None}, self._reason)

    def _parts(self) -> Iterator[dict[str, Any]]:
        for piece in self._llama.engine.pieces(self._asked.wanted[0]):
            if isinstance(piece, Result):
                self._result, self._reason = piece, self._shaper.reason(piece)
                self._llama.last_report = piece.report
                yield from self._shaper.finish()
            else:
                yield from self._shaper.push(piece)

    def _chunk(self, part: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        kind = f"{self._kind}.chunk" if self._asked.chat else self._kind
        return {**self._head, "object": kind, "choices": [{"index": 0, **part, "finish_reason": reason}]}


@contextlib.contextmanager
def _value_errors() -> Iterator[None]:
    """What llama-cpp-python's users catch."""
    try:
        yield
    except (EdgespecError, RequestError) as error:
        raise ValueError(str(error)) from error
