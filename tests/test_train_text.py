"""Training text: passages, prompts, what is kept out, the file that survives a kill, generating with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import gguf_maker
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.cli import main as cli
from edgespec.errors import ConfigError, DrafterError
from edgespec.interfaces import Row
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions
from edgespec.target.template import ChatTemplate, template_for
from edgespec.train import generate, keep_out, passages
from edgespec.train.prompts import GROUPS, Prompt, Prompts
from edgespec.train.text_file import TextFacts, TextFile, matched

FACTS = TextFacts("a" * 64, 8, 300, 4)
MANUAL = r""".TH THING 1
.SH NAME
thing \- does \fBone\fP thing and does it well enough for most of those who ever want it done
.SH DESCRIPTION
It reads a file and writes another one, and between these two it does nothing that anybody would notice.
"""


def own(folder: Path) -> Path:
    folder.mkdir()
    (folder / "notes.txt").write_text("A sentence about boats and the sea. " * 12, encoding="utf-8")
    (folder / "tool.py").write_text("def f(x):\n" + "".join(f"    x += {n}  # step\n" for n in range(20)), "utf-8")
    (folder / "asked.jsonl").write_text('{"turns": ["How do boats float on water?"]}\n', encoding="utf-8")
    (folder / "picture.png").write_bytes(b"\0\1\2" * 99)
    return folder


def test_passages_of_own_files_by_what_they_are(tmp_path: Path) -> None:
    found = passages.Passages(passages.sources([own(tmp_path / "own")], machine=False), 0)
    texts = {passage.text for number in range(40) if (passage := found.draw("own", number)) is not None}
    assert "How do boats float on water?" in texts
    assert any(text.startswith("def f(x):") for text in texts)
    assert any(text.startswith("A sentence") for text in texts)
    assert not any("\0" in text for text in texts)
    assert found.draw("code", 0) is None
    with pytest.raises(ConfigError, match="no such file or folder"):
        passages.sources([tmp_path / "gone"])


def test_a_manual_page_becomes_running_text() -> None:
    text = "\n\n".join(passages._manual(MANUAL))
    assert "thing - does one thing and does it well" in text
    assert "reads a file" in text
    assert not {".SH", "\\"} & set(text.split())
    assert "\\f" not in text


def test_prompts_are_a_function_of_seed_and_number(tmp_path: Path) -> None:
    found = passages.sources([own(tmp_path / "own")], machine=False)
    made = [Prompts(passages.Passages(found, 3), 3).make(number) for number in range(200)]
    assert made == [Prompts(passages.Passages(found, 3), 3).make(number) for number in range(200)]
    kept = [prompt for prompt in made if prompt is not None]
    assert {prompt.group for prompt in kept} <= set(GROUPS)
    assert len({prompt.user for prompt in kept if not prompt.asked}) > 60
    assert {prompt.temperature == 0 for prompt in kept} == {True, False}
    assert 0 < sum(prompt.held_out for prompt in kept) < len(kept) / 3
    by_source: dict[str, set[bool]] = {}
    for prompt in kept:
        by_source.setdefault(prompt.source, set()).add(prompt.held_out)
    assert all(len(sides) == 1 for sides in by_source.values())


WORDS = st.lists(st.sampled_from(["sea", "boat", "Über", "and", "7", "the"]), min_size=1, max_size=40)


@given(WORDS, WORDS, WORDS)
def test_what_shares_a_run_of_words_is_kept_out(before: list[str], text: list[str], behind: list[str]) -> None:
    kept_out = keep_out.KeepOut([" ".join(text)], n=8)
    asked = " ".join([*before, *(word.upper() + "," for word in text), *behind])
    assert kept_out.touches([asked]) == (len(text) >= 6) or asked == " ".join(text)
    assert kept_out.touches([" ".join(text) + "!"])
    assert (kept_out.n_texts, kept_out.n_seen) == (1, 2)


def test_a_text_that_shares_fewer_words_is_not(tmp_path: Path) -> None:
    line = " ".join(f"w{number}" for number in range(30))
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question_id": 1, "turns": [line, "Why?"]}) + "\n", "utf-8")
    kept_out = keep_out.KeepOut(keep_out.texts_of(tmp_path / "eval.jsonl"))
    twelve, thirteen = (" ".join(line.split()[5 : 5 + n]) for n in (12, 13))
    assert not kept_out.touches([f"x {twelve} y"])
    assert kept_out.touches(["nothing", f"x {thirteen} y"])
    assert kept_out.touches(["why"])
    assert not kept_out.touches(["why not"])
    (tmp_path / "eval.jsonl").write_text("no\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        keep_out.texts_of(tmp_path / "eval.jsonl")


def add(file: TextFile, number: int, n_prompt: int = 3, n_answer: int = 5) -> None:
    rng = np.random.default_rng(number)
    file.add(
        {"number": number, "held_out": False}, rng.integers(0, 300, n_prompt + n_answer).astype(np.int32),
        rng.normal(size=(n_answer, 8)).astype(np.float16), rng.integers(0, 300, (n_answer, 4)),
        rng.normal(size=(n_answer, 4)).astype(np.float16),
    )  # fmt: skip


@pytest.mark.parametrize("cut", [1, 10, 50, 131])
def test_a_torn_end_is_cut_off_and_writing_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.text"
    with TextFile(path, FACTS, writing=True) as file:
        for number in (4, 6):
            add(file, number)
    path.write_bytes(path.read_bytes()[:-cut])
    with TextFile(path, FACTS) as file:  # a reader leaves it as it is
        assert [answer.meta["number"] for answer in file] == [4]
    with TextFile(path, FACTS, writing=True) as file:
        assert (file.n_tokens, file.next_number) == (5, 5)
        add(file, 9)
    with TextFile(path, FACTS) as file:
        answers = list(file)
    assert [answer.meta["number"] for answer in answers] == [4, 9]
    rng = np.random.default_rng(9)
    assert (answers[1].tokens == rng.integers(0, 300, 8)).all()
    assert (answers[1].hidden == rng.normal(size=(5, 8)).astype(np.float16)).all()
    assert (answers[1].top == rng.integers(0, 300, (5, 4))).all()
    assert (answers[1].n_prompt, answers[1].n_answer) == (3, 5)


def test_a_damaged_answer_is_passed_over_and_another_model_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.text"
    with TextFile(path, FACTS, writing=True) as file:
        add(file, 0)
        middle = file.n_bytes - 20
        add(file, 1)
        with pytest.raises(DrafterError, match="another training writes"):
            TextFile(path, FACTS, writing=True)
    raw = bytearray(path.read_bytes())
    raw[middle] ^= 1
    path.write_bytes(raw)
    with TextFile(path, FACTS) as file:
        assert [answer.meta["number"] for answer in file] == [1]
    with pytest.raises(DrafterError, match="text of another model"):
        TextFile(path, TextFacts("b" * 64, 8, 300, 4))
    with pytest.raises(DrafterError, match="cannot be used"):
        TextFile(tmp_path / "gone.text", FACTS)


def test_matched_is_where_the_last_two_tokens_stood_before() -> None:
    tokens = np.array([1, 2, 3, 1, 2, 9, 9, 9, 9], np.int32)
    plain = [
        any(tokens[first : first + 2].tolist() == tokens[at - 2 : at].tolist() for first in range(at - 2))
        for at in range(2, 9)
    ]
    assert matched(tokens, 2).tolist() == plain


@given(st.integers(1, 5), st.integers(5, 400), st.integers(1, 9), st.integers(0, 99))
def test_the_likeliest_are_those_of_a_whole_sort(n_rows: int, n_vocab: int, n: int, seed: int) -> None:
    rows: Row = np.random.default_rng(seed).normal(size=(n_rows, n_vocab)).astype(np.float32)
    n = min(n, n_vocab)
    ids, logits = generate.likeliest(rows, n)
    whole = np.argsort(-rows, axis=1, kind="stable")
    assert (ids[:, :n] == whole[:, :n]).all()
    padded = np.pad(rows, ((0, 0), (0, 64)), constant_values=-np.inf)
    assert (logits == np.take_along_axis(padded, ids, 1)).all()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = gguf_maker.make(tmp_path_factory.mktemp("models") / "tiny.gguf", output_scale=1.0)
    options = TargetOptions(n_ctx=3 * generate.CTX, n_threads=1, n_seq_max=3, n_rows_max=3, kv_unified=False)
    with load(path, options) as opened:
        yield opened


def template(target: LlamaTarget) -> ChatTemplate:
    return template_for(None, target.architecture, bos="<s>", eos="</s>", has_token=lambda _: False)


def asked(number: int, *, asked: bool = False, temperature: float = 0.0) -> Prompt:
    return Prompt(number, "chat", f"s{number}", None, f"question {number}", asked, "And?", temperature, 24)


def test_answers_hold_the_states_and_logits_of_the_target(target: LlamaTarget, tmp_path: Path) -> None:
    facts = TextFacts(str(target.info.trained), target.n_hidden, target.n_vocab, generate.N_TOP)
    prompts = [asked(number, asked=number == 2, temperature=0.7 * (number % 2)) for number in range(5)]
    kept_out = keep_out.KeepOut(["question 3"])
    with TextFile(tmp_path / "a.text", facts, writing=True) as file:
        generator = generate.Generator(target, template(target), file, prompts, kept_out, 0)
        generator.run(lambda: True)
        answers = list(file)
    assert {answer.meta["number"] for answer in answers} >= {0, 1, 4}
    assert 3 not in {answer.meta["number"] for answer in answers}
    assert kept_out.n_dropped == 1
    assert sum(answer.n_answer for answer in answers) == generator.n_tokens
    output = gguf_maker._matrix(np.random.default_rng(8), gguf_maker.N_VOCAB, gguf_maker.N_EMBD)
    for answer in answers:
        logits = answer.hidden.astype(np.float32) @ output.T
        assert (np.take_along_axis(logits, answer.top.astype(np.int64), 1)[:, 0] > logits.max(1) - 0.05).all()
        spread = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        wanted = np.take_along_axis(spread, answer.top.astype(np.int64), 1)
        assert np.allclose(wanted, answer.logprobs.astype(np.float32), atol=0.05)
        if answer.meta["temperature"] == 0:
            assert (answer.tokens[answer.n_prompt :] == answer.top[:, 0]).all()


def test_what_was_begun_is_kept_when_the_time_is_up(target: LlamaTarget, tmp_path: Path) -> None:
    facts = TextFacts(str(target.info.trained), target.n_hidden, target.n_vocab, generate.N_TOP)
    turns = iter(range(10))
    with TextFile(tmp_path / "a.text", facts, writing=True) as file:
        numbered = generate.in_order(lambda number: asked(number) if number % 2 else None, 0)
        generator = generate.Generator(target, template(target), file, numbered, keep_out.KeepOut(), 0)
        generator.run(lambda: next(turns, None) is not None)
        assert [answer.meta["number"] for answer in file] == [1, 3, 5]
        assert file.next_number == 6
    assert list(islice(generate.in_order(lambda _: None, 0), 3)) == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--only", "both"], 2, "--only must be one of generate, fit"),
        (["--name", "a/b"], 2, "is not a name"),
        (["--only", "generate", "--keep-out", "gone.jsonl"], 2, "gone.jsonl cannot be read"),
        (["gone.gguf", "--only", "generate", "--from", "nowhere"], 2, "nowhere: no such file or folder"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str) -> None:
    found = cli.run(("drafter", "train", *args))
    out, err = capsys.readouterr()
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err
