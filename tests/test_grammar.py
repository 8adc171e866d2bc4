"""Constrained answers of the real llama.cpp on a tiny model: valid, the same drafted or not, and never an abort."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from gguf_maker import BOS, EOS, EOT, UNK, make
from schemas import WRITTEN, generated

from edgespec.config import EngineConfig
from edgespec.constraint import Constraint
from edgespec.engine import Engine
from edgespec.errors import ConstraintError
from edgespec.interfaces import Limits, Message, Result, Sampling

ROOM = 400
CLOSING = {ord(char) + 3: 2.5 for char in '"}]'}
"""The tiny model's tokens are the bytes, from 3 on. It is random: without a push it hardly ends a string."""
DRAWN = Sampling(0.9, top_k=40, top_p=0.95, seed=3, logit_bias=CLOSING)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = make(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with Engine.open(path, EngineConfig(n_ctx=512, threads=1, threads_batch=1, kv_type="f32")) as opened:
        yield opened


def answer(engine: Engine, constraint: Constraint, sampling: Sampling, limits: Limits, drafter: str = "none") -> Result:
    prompt = engine.prompt("The facts as JSON: ")
    stream = engine.stream(prompt, sampling, limits, drafter=drafter, constraint=constraint)
    for _ in stream:
        pass
    return stream.result


def both_ways(engine: Engine, constraint: Constraint, sampling: Sampling, n_draft: int | None = 7) -> Result:
    """The answer, the same without a draft and with drafts of `n_draft` tokens (None: as the controller likes it)."""
    plain = answer(engine, constraint, sampling, Limits(ROOM))
    drafted = answer(engine, constraint, sampling, Limits(ROOM, fixed_draft=n_draft), "auto")
    assert (drafted.tokens, drafted.text, drafted.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    return plain


def check_valid(schema: Any, text: str) -> None:
    kind: Any = jsonschema.Draft202012Validator
    if isinstance(schema, dict) and isinstance(schema.get("items"), list):
        kind = jsonschema.Draft7Validator
    if isinstance(schema, dict) and schema.get("exclusiveMinimum") is True:
        kind = jsonschema.Draft4Validator
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize("block", range(10))
def test_300_generated_schemas(engine: Engine, block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        schema = generated(seed)
        sampling = DRAWN if seed % 3 == 0 else Sampling(logit_bias=CLOSING)
        result = both_ways(engine, Constraint.json_schema(schema), sampling, None if seed % 2 else 7)
        assert result.finish_reason == "stop", (seed, result.text)
        check_valid(schema, result.text)


@pytest.mark.parametrize("schema", WRITTEN, ids=lambda schema: json.dumps(schema)[:60])
def test_written_schemas(engine: Engine, schema: Any) -> None:
    for sampling in (Sampling(logit_bias=CLOSING), DRAWN):
        result = both_ways(engine, Constraint.json_schema(schema), sampling)
        if result.finish_reason == "stop":
            check_valid(schema, result.text)
        else:  # only where the schema sets no end
            assert result.finish_reason == "length"
            assert schema is True or any(word in json.dumps(schema) for word in ('"next"', "{}", '"pattern": "b"'))


@pytest.mark.parametrize(
    "pattern",
    [
        r"[A-Z]{3}-\d{2}",
        r"(ja|nein)(, (ja|nein)){0,3}!",
        r"\w+@\w+\.(org|de)",
        "ä[ö-ü]{2,4}ß€𝄞?",
        r"[^\x00-\x7f]{1,5}",
        r"\S\D\W",
    ],
)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(1.5, min_p=0.05, seed=2)])
def test_text_matches_the_expression(engine: Engine, pattern: str, sampling: Sampling) -> None:
    result = both_ways(engine, Constraint.regex(pattern), sampling)
    if result.finish_reason == "stop":
        assert re.fullmatch(pattern, result.text)
    else:
        assert pattern.startswith(r"\w+")  # the only one without an end
    assert "\ufffd" not in result.text


def test_cut_answers_say_so(engine: Engine) -> None:
    result = answer(engine, Constraint.json_schema({"enum": ["abcdefgh"]}), Sampling(), Limits(5))
    assert (result.text, result.finish_reason) == ('"abcd', "length")


def test_the_end_comes_where_the_grammar_may_end_and_nowhere_else(engine: Engine) -> None:
    eager = Sampling(logit_bias={EOS: 100.0, EOT: 50.0})
    assert answer(engine, Constraint.regex("(abc){2,9}"), eager, Limits(ROOM)).text == "abcabc"
    shy = Sampling(logit_bias={EOS: -1000.0, EOT: -1000.0})
    result = both_ways(engine, Constraint.regex("(abc){2,9}"), shy)
    assert (result.text, result.finish_reason) == ("abc" * 9, "stop")


def test_forced_text_is_drafted_and_always_right(engine: Engine) -> None:
    names = ["first_name", "last_name", "住所"]
    schema = {"properties": {name: {"type": "boolean"} for name in names}, "required": names}
    constraint = Constraint.json_schema(schema)
    result = answer(engine, constraint, Sampling(), Limits(ROOM, fixed_draft=15), "auto")
    report = result.report
    assert report.drafter == "ngram+grammar"
    assert report.drafted - report.accepted <= 2 * len(names)  # the n-grams' values, but no name
    assert report.rounds < len(result.tokens) / 5
    assert answer(engine, constraint, Sampling(), Limits(ROOM), "ngram").report.drafter == "ngram"
    assert answer(engine, constraint, Sampling(), Limits(ROOM)).report.drafter == "none"


def test_a_guide_never_lets_through_what_would_end_the_process(engine: Engine) -> None:
    guide = engine.target.guide('root ::= "a" [^b]{0,3} "é"?')
    for token in (UNK, BOS, EOS, EOT, 3, ord("b") + 3):  # 3 is the null byte
        assert not guide.allows(token)
        with pytest.raises(ConstraintError, match="not allowed"):
            guide.accept(token)
    guide.accept(ord("a") + 3)
    assert guide.allows(EOS)
    for byte in (0x00, 0x80, 0xC0, 0xF5, 0xFF, ord("b")):
        assert not guide.allows(byte + 3)
    guide.accept(0xF0 + 3)
    assert not guide.allows(EOS)  # in the middle of a character
    assert not guide.allows(0x80 + 3)  # an overlong form, which llama.cpp would take
    assert guide.allows(0x9F + 3)
    assert guide.n_allowed([0x9F + 3, 0x80 + 3, 0x80 + 3, ord("b") + 3]) == 3
    assert guide.allows(0x9F + 3)  # asking changed nothing


def test_a_dead_end_is_an_error_and_the_session_goes_on(engine: Engine) -> None:
    session = engine.session()
    stuck = Constraint('root ::= "a" [\\x00]')
    stream = engine.stream(engine.prompt("x"), limits=Limits(9), session=session, constraint=stuck)
    with pytest.raises(ConstraintError, match="allows nothing that this model can write"):
        list(stream)
    assert stream.result.text == "a"
    after = engine.stream(engine.prompt("x"), limits=Limits(9), session=session, constraint=Constraint.regex("ok"))
    assert "".join(chunk.text for chunk in after) == "ok"
    engine.release(session)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no rule root"),
        ('main ::= "a"', "there is no rule root"),
        ("root ::= other", "line 1, column 10: there is no rule other"),
        ('root ::= "a\nb', "line 1, column 10: this literal is not closed"),
        ('root = "a"', 'line 1, column 6: "::=" must follow the name root'),
        ('root ::= "a" "\\q"', "line 1, column 15: unknown escape"),
        ('root ::= ("a"', "line 1, column 10: this group is not closed"),
        ("root ::= [a", "this class is not closed"),
        ("root ::= []", "an empty class matches nothing"),
        ("root ::= [z-a]", "ends before it begins"),
        ('root ::= "a"{3,2}', "ends before it begins"),
        ('root ::= "a"{2001}', "more than 2000 repetitions"),
        ('root ::= ("a" "b"?){1500}', "more than 2000 repetitions"),
        ('root ::= "a"{x}', "a repetition is written {3}"),
        ("root ::= *", "nothing before this sign"),
        ('root ::= "a"*+', "nothing before this sign"),
        ('root ::= root "a" | "b"', "the rule root can begin with itself"),
        ('root ::= a root "x" | "y"\na ::= b\nb ::= ""', "the rule root can begin with itself"),
        ('root ::= ("a"*)*', "what is repeated here can begin with itself"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule root is there twice"),
        ("root ::= <think>", "tokens by name or number"),
        ('root ::= "a" )', "')' is not understood here"),
        ('root ::= "a\0"', "a null character"),
        ('root ::= "\ud800"', "not valid Unicode"),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "more than 200 nested groups"),
        (
            "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(40)) + 'r40 ::= "a"',
            "too many ways",
        ),
    ],
)
def test_bad_grammars_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_check_lets_through_llama_cpp_survives(engine: Engine) -> None:
    command = [sys.executable, str(Path(__file__).with_name("grammar_fuzz.py")), str(engine.model_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 60


def test_random_texts_stay_within_the_grammar(engine: Engine) -> None:
    """Random allowed tokens: what the guide says about one, about many, and about what is forced agrees."""
    rng = random.Random(4)
    guide = engine.target.guide(Constraint.json_schema(WRITTEN[-4]).grammar)
    text = b""
    every = engine.target.vocab
    for _ in range(ROOM):
        only = guide.only()
        may = [token for token in range(every.n_tokens) if guide.allows(token)]
        assert only is None or may == [only]
        token = rng.choice(may)
        if token in engine.target.eog:
            break
        guide.accept(token)
        text += every.piece(token)
    assert json.loads(text)


@pytest.mark.model
def test_the_default_model_extracts(default_model: Path) -> None:
    facts = "Ada Lovelace was an English mathematician and writer, born in London in 1815."
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
            "fields": {"type": "array", "items": {"enum": ["mathematics", "writing", "music"]}, "maxItems": 3},
            "nationality": {"type": "string", "maxLength": 20},
        },
        "required": ["name", "born", "nationality"],
    }
    with Engine.open(default_model, EngineConfig(n_ctx=512, threads=2, threads_batch=2)) as engine:
        prompt = engine.prompt(engine.render([Message("user", f"{facts} Give the facts as JSON.")]))
        for sampling in (Sampling(), Sampling(0.8, top_p=0.9, seed=1)):
            results = []
            for drafter, limits in (("none", Limits(120)), ("auto", Limits(120)), ("auto", Limits(120, fixed_draft=7))):
                stream = engine.stream(
                    prompt, sampling, limits, drafter=drafter, constraint=Constraint.json_schema(schema)
                )
                list(stream)
                results.append(stream.result)
            assert results[0].finish_reason == "stop"
            check_valid(schema, results[0].text)
            assert [result.tokens for result in results[1:]] == [results[0].tokens] * 2
            assert "Ada" in results[0].text
            assert results[2].report.accepted > 10


@pytest.mark.model
def test_300_generated_schemas_on_the_default_model(default_model: Path) -> None:
    with Engine.open(default_model, EngineConfig(n_ctx=1024)) as engine:
        prompt = engine.prompt(engine.render([Message("user", "Give some facts about the sea as JSON.")]))
        for seed in range(300):
            schema = generated(seed)
            sampling = Sampling(1.0, top_p=0.95, seed=seed) if seed % 3 == 0 else Sampling()
            for drafter, n_draft in (("none", None), ("auto", None if seed % 2 else 5)):
                limits = Limits(600, fixed_draft=n_draft)
                stream = engine.stream(
                    prompt, sampling, limits, drafter=drafter, constraint=Constraint.json_schema(schema)
                )
                list(stream)
                assert stream.result.finish_reason == "stop", (seed, drafter, stream.result.text)
                check_valid(schema, stream.result.text)
