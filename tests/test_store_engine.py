"""Engines and the command line remember: when, what of it is used, and that the text stays the model's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf_maker
import pytest

from edgespec.cli import main as cli
from edgespec.config import EngineConfig
from edgespec.draft import store
from edgespec.draft.store_file import DAMAGED, LONG, SUFFIX, StoreFile
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Result
from edgespec.target.vocab import Vocab

PROMPT = list(b"one two three")
LIMITS = Limits(40, fixed_draft=8, ignore_eog=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")


def open_engine(model: Path) -> Engine:
    return Engine.open(model, EngineConfig(n_ctx=256, threads=1))


def answer(engine: Engine, prompt: Sequence[int] = PROMPT, *, learn: bool = False, drafter: str = "auto") -> Result:
    stream = engine.stream(prompt, None, LIMITS, drafter=drafter, learn=learn)
    for _ in stream:
        pass
    return stream.result


def stores() -> list[Path]:
    return sorted(store.folder().glob(f"*{SUFFIX}"))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(args)
    out, err = capsys.readouterr()
    return code, out, err


def test_what_was_learned_drafts_the_next_time(model: Path) -> None:
    with open_engine(model) as engine:
        first = answer(engine, learn=True)
        assert first.report.drafter == "ngram"
        assert len(stores()) == 1
        assert StoreFile(stores()[0]).n_held == len(PROMPT) + 40 + 1
        plain = answer(engine, drafter="none")
    with open_engine(model) as engine:
        again = answer(engine)
    assert again.tokens == first.tokens == plain.tokens
    assert again.report.drafter == "ngram+store"
    assert again.report.rounds < first.report.rounds
    assert again.report.accepted > first.report.accepted


def test_nothing_is_kept_unasked_nor_of_an_answer_that_was_cancelled(model: Path) -> None:
    with open_engine(model) as engine:
        answer(engine)
        stream = engine.stream(PROMPT, None, LIMITS, learn=True)
        next(stream)
        stream.close()
        assert stream.result.finish_reason == "cancelled"
    assert not store.folder().exists()


def test_of_a_conversation_each_turn_is_kept_once(model: Path) -> None:
    with open_engine(model) as engine:
        session = engine.session()
        text = PROMPT
        for _ in range(2):
            stream = engine.stream(text, None, LIMITS, session=session, learn=True)
            for _ in stream:
                pass
            text = [*session.tokens, *b" more"]
        n_kept = StoreFile(stores()[0]).n_held
    assert n_kept == len(session.tokens) + 2 + LONG  # an end each, and the seam


def test_where_nothing_is_kept_nobody_asks_for_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(self: Vocab, n_tokens: int) -> str:
        raise AssertionError("the tokenizer was named for nothing")

    monkeypatch.setattr(Vocab, "digest", digest)
    with open_engine(model) as engine:
        assert answer(engine).report.drafter == "ngram"


def test_a_store_that_is_missing_or_damaged_is_left_out_and_said(model: Path) -> None:
    with open_engine(model) as engine:
        plain = answer(engine, learn=True)
        path = stores()[0]
    path.write_bytes(path.read_bytes()[:-1])
    with open_engine(model) as engine:
        found = answer(engine)
        assert found.tokens == plain.tokens
        assert found.report.drafter == "ngram"
        assert [note for note in found.report.notes if "begins anew" in note]
    assert path.with_suffix(DAMAGED).exists()
    with open_engine(model) as engine:
        found = answer(engine, drafter="store")
        assert found.tokens == plain.tokens
        assert [note for note in found.report.notes if "nothing was learned for this tokenizer yet" in note]


@pytest.mark.parametrize(
    ("options", "environment", "kept"),
    [
        ((), {}, True),
        (("--no-learn",), {}, False),
        (("--set", "learn=false"), {}, False),
        ((), {"EDGESPEC_LEARN": "0"}, False),
        (("--learn",), {"EDGESPEC_LEARN": "0"}, True),
        (("--drafter", "none"), {}, False),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_chats_are_kept_unless_they_are_to_be_left_out(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    command: str,
    options: Sequence[str],
    environment: dict[str, str],
    kept: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, err = run(capsys, command, str(model), "-p", "hello", "--max-tokens", "8", "--ctx", "256", *options)
    assert code == 0, err
    assert bool(stores()) == kept


def test_documents_are_learned_once_and_forgotten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path
) -> None:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / ".git").mkdir()
    (notes / "a.txt").write_text("the quick brown fox jumps over the lazy dog", encoding="utf-8")
    (notes / "deep" / "b.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    (notes / "picture.bin").write_bytes(b"\0\1\2")
    (notes / "latin.txt").write_bytes(b"caf\xe9")
    (notes / ".hidden").write_text("secret", encoding="utf-8")
    (notes / ".git" / "config").write_text("secret", encoding="utf-8")
    (notes / "link.txt").symlink_to(notes / "a.txt")
    code, out, err = run(capsys, "drafter", "index", str(notes), "--model", str(model), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["documents"], found["known"], found["left_out"]) == (2, 0, 2)
    assert found["held"] == found["tokens"] + 2
    assert found["file"] == str(stores()[0])
    code, out, _ = run(capsys, "drafter", "index", str(notes / "a.txt"), str(notes / "deep"), "--model", str(model))
    assert code == 0
    assert out.startswith("0 tokens of 0 documents learned for tiny llama; 2 were known, 0 are not text")
    assert out.endswith(" MB\n")
    with open_engine(model) as engine:
        result = answer(engine, engine.prompt("a quick brown fox jumps"))
        assert result.report.drafter == "ngram+store"
    code, out, err = run(capsys, "drafter", "forget", "--yes")
    assert (code, out) == (0, "")
    assert err == "1.1 MB freed\n"
    assert list(store.folder().iterdir()) == []
    assert run(capsys, "drafter", "forget", "-y")[2] == "0.0 MB freed\n"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["index", "nowhere"], 2, "nowhere: no such file or folder"),
        (["index"], 2, "PATH"),
        (["index", ".", "--model", "gone.gguf"], 3, "no such file"),
        (["forget"], 2, "add --yes"),
    ],
)
def test_errors_are_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    found, out, err = run(capsys, "drafter", *args)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_who_writes_to_the_store_is_waited_for_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.cli import drafter_store
    from edgespec.draft.store_writer import Writer

    monkeypatch.setattr(drafter_store, "_LOCK_S", 0.0)
    with Writer(store.folder(), "ab" * 32, 10) as writer:
        writer.add([1, 2, 3])
        code, _, err = run(capsys, "drafter", "forget", "--yes")
    assert code == 1
    assert err == "edgespec: another edgespec is writing to the store: try again when it has ended\n"
    assert len(stores()) == 1
