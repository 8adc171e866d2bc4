"""`edgespec.compat.Llama` beside the real `llama_cpp.Llama`: the same dicts, tokens and texts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_maker
import llama_cpp
import pytest
from own_process import run

from edgespec import compat

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
SAID = [{"role": "user", "content": "hello"}]
GREEDY: Any = {"temperature": 0.0, "max_tokens": 12}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
CHOSEN = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Each text begins with the start token, which the real one wants to be asked for in the template.
    meta = {"tokenizer.chat_template": TEMPLATE}
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf", meta=meta)


@pytest.fixture(scope="module")
def mine(path: Path) -> Iterator[Any]:
    with compat.Llama(model_path=str(path), n_ctx=1024, n_threads=1, verbose=False, seed=5) as llama:
        yield llama


@pytest.fixture(scope="module")
def theirs(path: Path) -> Iterator[Any]:
    llama = llama_cpp.Llama(
        model_path=str(path), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, seed=5, logits_all=True
    )
    yield llama
    llama.close()


def shape_of(value: Any) -> Any:
    """Keys and types; of a list, of its first item."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value)


CHATS: list[dict[str, Any]] = [
    GREEDY,
    {**GREEDY, "stop": ["zz"]},
    {**GREEDY, "response_format": {"type": "json_object", "schema": SCHEMA}, "max_tokens": 40},
    {"temperature": 0.9, "seed": 4, "max_tokens": 5, "top_k": 5, "repeat_penalty": 1.1},
]


@pytest.mark.parametrize("options", CHATS)
def test_chat_dicts_are_those_of_llama_cpp(mine: Any, theirs: Any, options: dict[str, Any]) -> None:
    ours = mine.create_chat_completion(messages=SAID, **options)
    assert shape_of(ours) == shape_of(theirs.create_chat_completion(messages=SAID, **options))
    pieces = list(mine.create_chat_completion(messages=SAID, stream=True, **options))
    others = list(theirs.create_chat_completion(messages=SAID, stream=True, **options))
    for at in (0, 1, -1):
        assert shape_of(pieces[at]) == shape_of(others[at])
    told = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert told == ours["choices"][0]["message"]["content"]
    assert len({piece["id"] for piece in pieces}) == 1


@pytest.mark.parametrize("options", [GREEDY, {**GREEDY, "echo": True}, {**GREEDY, "logprobs": 2}])
def test_completion_dicts_are_those_of_llama_cpp(mine: Any, theirs: Any, options: dict[str, Any]) -> None:
    prompt = "the cat sat on"
    ours, real = (each.create_completion(prompt, **options) for each in (mine, theirs))
    real["choices"][0]["logprobs"] = _plain(real["choices"][0]["logprobs"])
    assert shape_of(ours)["usage"] == shape_of(real)["usage"]
    assert set(ours) == set(real)
    assert set(ours["choices"][0]) == set(real["choices"][0])
    if "logprobs" in options:
        mine_told, told = (each["choices"][0]["logprobs"] for each in (ours, real))
        assert set(mine_told) == set(told)
        assert mine_told["token_logprobs"][0] == pytest.approx(told["token_logprobs"][0], abs=1e-3)
    elif "echo" in options:
        assert ours["choices"][0]["text"].startswith(prompt)
    pieces, others = (list(each(prompt, stream=True, **GREEDY)) for each in (mine, theirs))
    for at in (0, -1):
        assert shape_of(pieces[at]) == shape_of(others[at])


def _plain(logprobs: Any) -> Any:
    return None if logprobs is None else json.loads(json.dumps(logprobs, default=float))


def test_tools_of_a_choice_are_those_of_llama_cpp(mine: Any, theirs: Any) -> None:
    options: dict[str, Any] = {"tools": [TOOL], "tool_choice": CHOSEN, "temperature": 0.0, "max_tokens": 150}
    ours, real = (each.create_chat_completion(messages=SAID, **options) for each in (mine, theirs))
    assert shape_of(ours["choices"][0]["message"]) == shape_of(real["choices"][0]["message"])
    assert ours["choices"][0]["finish_reason"] == "tool_calls"
    call = ours["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "add"
    assert json.loads(call["arguments"])["a"] in (1, 2)
    legacy = mine.create_chat_completion(
        SAID, functions=[TOOL["function"]], function_call={"name": "add"}, temperature=0.0, max_tokens=150
    )
    assert legacy["choices"][0]["message"]["function_call"] == call


def test_tokens_and_numbers_are_those_of_llama_cpp(mine: Any, theirs: Any) -> None:
    for text in (b"the cat", "größe 名".encode(), b"x</s>", b""):
        for options in ({}, {"add_bos": False}, {"special": True}):
            ids = mine.tokenize(text, **options)
            assert ids == theirs.tokenize(text, **options)
            for special in (False, True):
                assert mine.detokenize(ids, special=special) == theirs.detokenize(ids, special=special)
    for name in ("token_eos", "token_bos", "n_ctx", "n_vocab"):
        assert getattr(mine, name)() == getattr(theirs, name)()


def test_seeds_hold_and_reset_changes_nothing(mine: Any) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "max_tokens": 20}

    def text(**more: Any) -> Any:
        mine.reset()
        return mine("ab", **options, **more)["choices"][0]["text"]

    assert text() == text() == text(seed=5) != text(seed=6)


def test_threads_and_streams_take_turns(mine: Any) -> None:
    expected = mine("the cat", **GREEDY)["choices"][0]["text"]
    begun = mine("the cat", stream=True, **GREEDY)
    next(begun)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(mine("the cat", **GREEDY)["choices"][0]["text"]))
    thread.start()
    found.append(mine("the cat", **GREEDY)["choices"][0]["text"])
    thread.join()
    assert found == [expected] * 2
    list(begun)
    assert mine.last_report.threads == 1


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"temprature": 1}, TypeError, "did you mean 'temperature'"),
        ({"temperature": "hot"}, ValueError, "temperature"),
        ({"tfs_z": 0.5}, ValueError, "tfs_z"),
        ({"logits_processor": [print]}, ValueError, "logits_processor"),
        ({"grammar": compat.LlamaGrammar.from_string("root := 5")}, ValueError, "grammar"),
        ({"suffix": "x"}, ValueError, "suffix"),
    ],
)
def test_what_cannot_be_had_is_refused(mine: Any, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        mine("ab", **options)
    with pytest.raises(ValueError, match="context"):
        mine("ab" * 3000)


def test_grammars_and_biases_hold(mine: Any) -> None:
    grammar = compat.LlamaGrammar.from_string('root ::= "yes" | "no"')
    assert mine("ab", grammar=grammar, **GREEDY)["choices"][0]["text"] in ("yes", "no")
    number = compat.LlamaGrammar.from_json_schema('{"const": 7}')
    assert mine("ab", grammar=number, **GREEDY)["choices"][0]["text"] == "7"
    wanted = mine.tokenize(b"q", add_bos=False)
    assert mine("ab", logit_bias={wanted[0]: 100.0}, **GREEDY)["choices"][0]["text"] == "q" * 12


def test_arguments_are_used_refused_or_told(path: Path) -> None:
    with compat.Llama(str(path), n_gpu_layers=-1, logits_all=True, n_batch=512, type_k=30, type_v=30) as llama:
        told = [note for note in llama.notes if "has no effect" in note]
        assert [note.split()[0] for note in told] == ["n_gpu_layers", "logits_all"]
        assert llama.engine.config.kv_type == "bf16/bf16"
        assert llama.n_ctx() == 512
        with pytest.raises(AttributeError, match="completions and tokens only"):
            llama.create_embedding("x")
    llama.close()
    with pytest.raises(ValueError, match="closed"):
        llama("ab")
    with pytest.raises(ValueError, match="embedding would change"):
        compat.Llama(str(path), embedding=True)
    with pytest.raises(TypeError, match="did you mean 'n_gpu_layers'"):
        compat.Llama(str(path), n_gpu_layer=1)
    with pytest.raises(ValueError, match=r"/nowhere/model\.gguf"):
        compat.Llama("/nowhere/model.gguf")
    with pytest.raises(ValueError, match=r'Llama\("hf:owner/repo/x.gguf"\)'):
        compat.Llama.from_pretrained("owner/repo", "x.gguf")


def test_it_needs_no_server_library() -> None:
    assert run("import edgespec.compat; print([m for m in ('starlette', 'uvicorn') if m in sys.modules])") == "[]\n"


SNIPPETS = (
    """
from llama_cpp import Llama
llm = Llama(model_path=PATH, n_ctx=512, verbose=False)
output = llm("Q: Name the planets in the solar system? A: ", max_tokens=32, stop=["Q:"], echo=True, temperature=0.0)
text = output["choices"][0]["text"]
""",
    """
from llama_cpp import Llama
llm = Llama(PATH, n_ctx=1024, n_threads=2, verbose=False)
text = ""
messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Where is Paris?"}]
for chunk in llm.create_chat_completion(messages=messages, stream=True, temperature=0, max_tokens=40):
    delta = chunk["choices"][0]["delta"]
    if "content" in delta:
        text += delta["content"]
""",
    """
import json
from llama_cpp import Llama
llm = Llama(model_path=PATH, n_ctx=512, n_gpu_layers=0, verbose=False)
answer = llm.create_chat_completion(
    messages=[{"role": "user", "content": "Ada was born in 1815. Give name and year as JSON."}],
    response_format={"type": "json_object", "schema": {"type": "object", "properties": {"year": {"type": "integer"}},
                                                       "required": ["year"]}},
    temperature=0.0, max_tokens=40,
)
text = json.loads(answer["choices"][0]["message"]["content"])["year"]
""",
)


TIE = 0.5
"""Difference of log-probabilities within which flash attention, which llama_cpp leaves off, may turn a choice."""


@pytest.mark.model
@pytest.mark.parametrize("snippet", SNIPPETS, ids=["completion", "stream", "json"])
def test_programs_run_with_another_import(snippet: str, default_model: Path) -> None:
    """The form of JSON is written with other white space, so that only its kind can be compared."""
    told: list[Any] = []
    for code in (snippet, snippet.replace("from llama_cpp import", "from edgespec.compat import")):
        names: dict[str, Any] = {"PATH": str(default_model)}
        exec(code, names)  # the programs are above
        told.append(names["text"])
        if "output" not in names and "messages" not in names:
            assert isinstance(names["text"], int)
        elif len(told) == 2 and told[0] != told[1]:
            llm, options = names["llm"], {"temperature": 0.0, "max_tokens": 40, "logprobs": True, "top_logprobs": 3}
            assert "messages" in names, "the short completion is the same"
            answer = llm.create_chat_completion(names["messages"], **options)
            _check_tie(answer["choices"][0]["logprobs"]["content"], told[0])
        names["llm"].close()


def _check_tie(tokens: list[dict[str, Any]], theirs: str) -> None:
    """At the first difference the other's token is nearly as likely."""
    seen = ""
    for token in tokens:
        if not theirs.startswith(seen + token["token"]):
            others = [top for top in token["top_logprobs"] if theirs.startswith(seen + top["token"])]
            assert token["logprob"] - others[0]["logprob"] < TIE
            return
        seen += token["token"]
