"""Chat: what is kept, what is reused, what is dropped, whatever ends a turn."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from chat_fakes import FakeEngine, as_engine, fail_after, fake_engine

from edgespec.chat import Chat, Turn
from edgespec.config import EngineConfig
from edgespec.conversation import PromptMemory
from edgespec.errors import ConfigError, ContextFullError, EdgespecError, EvalError
from edgespec.interfaces import Limits, Message, Sampling


def say(turn: Turn) -> str:
    return "".join(chunk.text for chunk in turn)


def talk(engine: FakeEngine, *texts: str, **options: object) -> Chat:
    chat = Chat(as_engine(engine), **options)  # type: ignore[arg-type]
    for text in texts:
        say(chat.ask(text))
    return chat


def contents(chat: Chat) -> list[str]:
    return [message.content for message in chat.messages]


def test_turns_alternate_and_system_comes_first() -> None:
    chat = talk(fake_engine("hello"), "one", "two", system="be kind")
    assert chat.messages == [
        Message("system", "be kind"),
        Message("user", "one"),
        Message("assistant", "hello"),
        Message("user", "two"),
        Message("assistant", "hello"),
    ]
    chat.set_system("")
    assert contents(chat) == ["one", "hello", "two", "hello"]


def test_second_turn_evaluates_only_what_is_new() -> None:
    engine = fake_engine("an answer of some length")
    chat = talk(engine, "a question of some length")
    n_first, first = engine.target.n_evaluated, chat.last
    say(chat.ask("more"))
    assert first is not None
    assert chat.last is not None
    n_known = first.usage.prompt_tokens + first.usage.completion_tokens
    assert chat.last.usage.cached_tokens >= n_known - 2
    assert engine.target.n_evaluated - n_first < 70
    assert engine.n_sessions == 1


def test_ids_that_were_evaluated_are_reused_although_the_tokenizer_would_choose_others() -> None:
    engine = fake_engine("abab")  # written as four tokens, tokenised as two
    chat = talk(engine, "one", "two")
    prompt = engine.calls[1][0]
    first_prompt = engine.calls[0][0]
    assert prompt[: len(first_prompt) + 4] == [*first_prompt, *b"abab"]
    assert chat.last is not None
    assert chat.last.usage.cached_tokens == len(first_prompt) + 4
    say(chat.ask("three"))
    assert engine.calls[2][0][: len(prompt) + 4] == [*prompt, *b"abab"]


def test_a_cut_inside_what_the_tokenizer_joins_is_not_used() -> None:
    words = {"ab": [1], "a": [2], "b": [3]}
    memory = PromptMemory(lambda text: words["ab"] if text == "ab" else words[text], lambda text: words[text])
    memory.remember("a", [7], "", None)
    assert memory.encode("ab") == [1]


def test_stop_string_and_reuse() -> None:
    engine = fake_engine("yes###no")
    chat = talk(engine, "one", "two", limits=Limits(stop=("###",)))
    assert contents(chat) == ["one", "yes", "two", "yes"]
    assert chat.last is not None
    assert chat.last.usage.cached_tokens >= len(engine.calls[0][0]) - 1


def test_retry_replaces_the_answer_and_draws_warm() -> None:
    engine = fake_engine("first")
    chat = talk(engine, "question", sampling=Sampling(temperature=0.2, seed=4))
    engine.target.reply = lambda _: "second"
    turn = chat.retry()
    assert "0.7" in turn.notes[0]
    say(turn)
    assert contents(chat) == ["question", "second"]
    say(chat.retry())
    assert [(s.attempt, s.temperature, s.seed) for _, s, _, _ in engine.calls] == [
        (0, 0.2, 4),
        (1, 0.7, 4),
        (2, 0.7, 4),
    ]
    chat.sampling = Sampling(temperature=1.1)
    assert chat.retry().notes == ()
    say(chat.ask("next"))
    assert engine.calls[-1][1].attempt == 0
    assert engine.calls[0][0] == engine.calls[1][0]


def test_retry_and_undo_of_nothing() -> None:
    chat = Chat(as_engine(fake_engine("x")))
    assert chat.undo() is None
    with pytest.raises(EdgespecError, match="no message"):
        chat.retry()
    with pytest.raises(EdgespecError, match="empty"):
        chat.ask(" \n")
    assert chat.messages == []


def test_undo_and_clear() -> None:
    chat = talk(fake_engine("ok"), "one", "two", system="s")
    assert chat.undo() == "two"
    assert contents(chat) == ["s", "one", "ok"]
    chat.clear()
    assert contents(chat) == ["s"]
    say(chat.ask("again"))
    assert contents(chat) == ["s", "again", "ok"]


def test_close_gives_the_session_back_and_the_chat_goes_on() -> None:
    engine = fake_engine("ok")
    chat = talk(engine, "one")
    chat.close()
    chat.close()
    assert engine.target.cells == {0: []}
    say(chat.ask("two"))
    assert contents(chat) == ["one", "ok", "two", "ok"]
    assert engine.n_sessions == 2


def test_cancelled_answer_is_kept_and_the_next_turn_goes_on() -> None:
    engine = fake_engine("a long answer")
    chat = Chat(as_engine(engine))
    turn = chat.ask("question")
    for _ in range(6):
        next(turn)
    turn.cancel()
    assert say(turn) == ""
    assert turn.result.finish_reason == "cancelled"
    assert contents(chat) == ["question", "a long"]
    say(chat.ask("and?"))
    assert contents(chat) == ["question", "a long", "and?", "a long answer"]


def test_cancelled_in_the_prompt_keeps_the_message() -> None:
    engine = fake_engine("answer")
    chat = Chat(as_engine(engine))
    turn = chat.ask("x" * 500)

    def cancel(_: object) -> None:
        if engine.target.n_evaluated >= 128:
            turn.cancel()

    engine.target.before_eval = cancel
    assert say(turn) == ""
    engine.target.before_eval = None
    assert contents(chat) == ["x" * 500, ""]
    assert engine.target.n_evaluated < 300
    say(chat.retry())
    assert contents(chat) == ["x" * 500, "answer"]


def test_cancelled_retry_without_text_keeps_the_old_answer() -> None:
    chat = talk(fake_engine("answer"), "question")
    turn = chat.retry()
    turn.cancel()
    say(turn)
    assert contents(chat) == ["question", "answer"]


def test_error_keeps_what_streamed() -> None:
    engine = fake_engine("answer")
    chat = talk(engine, "one")
    engine.target.before_eval = fail_after(4)
    with pytest.raises(EvalError, match="gone"):
        say(chat.ask("two"))
    engine.target.before_eval = None
    assert contents(chat)[:3] == ["one", "answer", "two"]
    assert "answer".startswith(contents(chat)[3])
    say(chat.retry())
    assert contents(chat) == ["one", "answer", "two", "answer"]


def test_keyboard_interrupt_in_the_caller_keeps_what_streamed() -> None:
    engine = fake_engine("answer")
    chat = Chat(as_engine(engine))

    def interrupt(_: object) -> None:
        if engine.target.n_evals == 4:
            raise KeyboardInterrupt

    engine.target.before_eval = interrupt
    with pytest.raises(KeyboardInterrupt):
        say(chat.ask("question"))
    engine.target.before_eval = None
    assert contents(chat)[0] == "question"
    say(chat.ask("next"))
    assert contents(chat)[2:] == ["next", "answer"]


def test_a_turn_left_alone_is_ended_by_the_next() -> None:
    chat = Chat(as_engine(fake_engine("answer")))
    next(chat.ask("one"))
    say(chat.ask("two"))
    assert contents(chat) == ["one", "a", "two", "answer"]


def test_thinking_stays_out_of_the_history() -> None:
    engine = fake_engine("<think>hm</think>\n\nyes")
    chat = talk(engine, "one", "two")
    assert contents(chat) == ["one", "yes", "two", "yes"]
    engine.opening = "<think>\n"
    engine.target.reply = lambda _: "<think>\nhm</think>no"  # it begins where the prompt ends
    turn = chat.ask("three")
    assert turn.thinking
    assert say(turn) == "hm</think>no"
    assert contents(chat)[-1] == "no"


def test_overflow_drops_the_oldest_turns_whole() -> None:
    engine = fake_engine("answer", n_ctx=256)
    chat = Chat(as_engine(engine), system="sys", limits=Limits(max_tokens=20))
    notes: list[str] = []
    for i in range(20):
        turn = chat.ask(f"question {i}")
        notes += turn.notes
        say(turn)
        prompt = engine.target.cells[0]
        text = bytes(t if t < 256 else 10 for t in prompt).decode()
        assert "sys" in text
        assert f"question {i}" in text
        assert len(engine.calls[-1][0]) <= 256 - 20
        assert text.count("question") == i + 1 - chat.n_dropped
    assert chat.n_dropped > 10
    assert chat.n_turns == 20
    assert 3 <= len(notes) < 15
    assert all("no longer sent" in note for note in notes)
    assert contents(chat)[1] == "question 0"


def test_a_message_that_does_not_fit_changes_nothing() -> None:
    engine = fake_engine("answer", n_ctx=256)
    chat = talk(engine, "one")
    before = chat.to_json()
    with pytest.raises(ContextFullError, match=r"this message has 4\d\d tokens and the context holds 256"):
        chat.ask("x" * 400)
    assert chat.to_json() == before
    assert chat.n_dropped == 0
    say(chat.ask("two"))
    chat.set_system("s" * 300)
    with pytest.raises(ContextFullError, match="system text"):
        chat.ask("three")
    assert chat.n_turns == 2


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    engine = fake_engine("grüße")
    chat = talk(engine, "one", "two", system="s", sampling=Sampling(temperature=0.4, logit_bias={3: -1.0}))
    chat.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    other = Chat(as_engine(fake_engine("new")))
    assert other.load(path) == "fake"
    assert other.messages == chat.messages
    assert other.sampling == chat.sampling
    assert Chat.from_json(as_engine(engine), chat.to_json()).messages == chat.messages
    say(other.ask("three"))
    assert contents(other)[-2:] == ["three", "new"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a saved conversation"),
        ({"version": 2}, "version 2"),
        ({"messages": "x"}, "must be a list"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "message 1"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1"),
        ({"messages": [7]}, "message 1"),
        ({"system": 7}, "system"),
        ({"sampling": []}, "sampling"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"sampling": {"tempo": 1}}, "tempo"),
        ({"sampling": {"logit_bias": {"x": 1}}}, "logit_bias"),
    ],
)
def test_a_bad_file_changes_nothing(tmp_path: Path, change: dict[str, object], message: str) -> None:
    chat = talk(fake_engine("answer"), "one")
    before = chat.to_json()
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(json.loads(before) | change))
    with pytest.raises(ConfigError, match=message):
        chat.load(path)
    assert chat.to_json() == before


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    chat = talk(fake_engine("answer"), "one")
    (tmp_path / "latin1").write_bytes(b"gr\xfc\xdfe")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "deep").write_text("[" * 100_000)
    for name in ("missing", "latin1", "text", "deep", "."):
        with pytest.raises(ConfigError) as error:
            chat.load(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be written"):
        chat.save(tmp_path / "no" / "such" / "folder")
    with pytest.raises(ConfigError, match="cannot be written"):
        chat.save(tmp_path)
    assert contents(chat) == ["one", "answer"]


def test_an_unanswered_last_message_is_loaded(tmp_path: Path) -> None:
    chat = talk(fake_engine("answer"), "one")
    body = json.loads(chat.to_json())
    body["messages"].append({"role": "user", "content": "two"})
    chat.restore(json.dumps(body))
    say(chat.retry())
    assert contents(chat) == ["one", "answer", "two", "answer"]


def test_configuration_gives_the_defaults() -> None:
    config = EngineConfig(system="from config", temperature=0.9, top_k=7, max_tokens=3, max_draft=2)
    engine = fake_engine("a long answer", config=config)
    chat = talk(engine, "one")
    assert chat.system == "from config"
    assert engine.calls[0][1].top_k == 7
    assert engine.calls[0][2] == Limits(3, max_draft=2)
    assert contents(chat)[-1] == "a l"
    assert Chat(as_engine(engine), system="").system is None
