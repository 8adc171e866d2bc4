"""Whole answers, blocking and asynchronous, by name of option: texts, tokens, messages, tools, cancelling, closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_maker
import pytest
from own_process import run

from edgespec import tools
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.errors import ConfigError, ContextFullError, EvalCancelled, ModelError
from edgespec.interfaces import Limits, Message, Result, Sampling

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
PROMPT = "the cat sat on the mat, the cat sat on the mat, the cat"
PLAIN: Any = {"temperature": 0.0, "max_tokens": 24, "ignore_eog": True}
LONG: Any = {**PLAIN, "max_tokens": 1500}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    meta = {"tokenizer.chat_template": TEMPLATE}
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf", meta=meta)


def open_engine(path: Path, **more: Any) -> Engine:
    return Engine.open(path, EngineConfig(n_ctx=2048, threads=1), **more)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with open_engine(path) as opened:
        yield opened


def drained(engine: Engine, prompt: Any, **options: Any) -> Result:
    stream = engine.stream(prompt, **options)
    for _ in stream:
        pass
    return stream.result


def test_all_ways_give_the_same_text_with_a_report(engine: Engine) -> None:
    old = engine.stream(engine.prompt(PROMPT), Sampling(), Limits(24, ignore_eog=True))
    for _ in old:
        pass
    expected = old.result.tokens

    async def by_loop() -> list[Result]:
        stream = engine.astream(PROMPT, **PLAIN)
        pieces = [chunk async for chunk in stream]
        assert "".join(chunk.text for chunk in pieces) == stream.result.text
        return [stream.result, await engine.agenerate(PROMPT, **PLAIN)]

    results = [drained(engine, PROMPT, **PLAIN), engine.generate(PROMPT, **PLAIN), *asyncio.run(by_loop())]
    results.append(engine.generate(engine.prompt(PROMPT), **PLAIN))
    for result in results:
        assert result.tokens == expected
        assert result.report.load_s is not None
        assert result.report.threads == 1


def test_options_come_before_objects_and_these_before_the_configuration(engine: Engine) -> None:
    ten = drained(engine, PROMPT, sampling=Sampling(), limits=Limits(24, ignore_eog=True), max_tokens=10)
    assert ten.usage.completion_tokens == 10
    assert engine.generate(PROMPT, **PLAIN, drafter="none").report.drafter == "none"
    assert engine.generate(PROMPT, **PLAIN, max_draft=0).report.drafter == "none"
    whole = engine.generate(PROMPT, **PLAIN)
    assert engine.generate(PROMPT, **PLAIN, stop=whole.text[3:6]).text == whole.text[:3]
    first = whole.tokens[0]
    assert engine.generate(PROMPT, **PLAIN, logit_bias={first: -100.0}).tokens[0] != first
    seeded = [engine.generate(PROMPT, max_tokens=24, temperature=1.5, top_k=0, top_p=1.0, seed=s) for s in (1, 1, 2)]
    assert seeded[0].tokens == seeded[1].tokens != seeded[2].tokens
    assert engine.generate(PROMPT, **PLAIN, json_schema={"const": 7}).text == "7"
    assert engine.generate(PROMPT, **PLAIN, regex="(ab){3}").text == "ababab"
    assert len(engine.generate(PROMPT, **PLAIN, logprobs=2).logprobs[0].top) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 0.5}, "no option 'temprature': did you mean 'temperature'"),
        ({"max_new_tokens": 5}, "did you mean 'max_tokens'"),
        ({"zzzz": 5}, "there is no option 'zzzz'$"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"max_draft": 99}, "max_draft must be a whole number from 0 to the engine's 15"),
        ({"stop": ""}, "stop must be"),
        ({"stop": ["a", 5]}, "stop must be"),
        ({"drafter": "ngrm"}, "unknown drafter"),
        ({"json_schema": {}, "regex": "a"}, "one form"),
        ({"constraint": "root ::= x"}, r"constraint must be an edgespec\.Constraint"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools need a conversation"),
        ({"logit_bias": {10**6: 1.0}}, "names token 1000000"),
    ],
)
def test_wrong_options_are_refused_by_all_ways_alike(engine: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine.generate(PROMPT, **options)
    with pytest.raises(ConfigError, match=words):
        engine.stream(PROMPT, **options)
    with pytest.raises(ConfigError, match=words):
        asyncio.run(engine.agenerate(PROMPT, **options))


def test_a_prompt_that_is_none_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="not a mixture"):
        engine.generate([Message("user", "a"), 5])  # type: ignore[arg-type]
    with pytest.raises(ContextFullError):
        engine.generate([1] * 5000)
    with pytest.raises(ConfigError, match="token ids outside"):
        engine.generate([10**6])
    assert engine.generate(PROMPT, **PLAIN).finish_reason == "length", "the queue goes on"


def test_chat_renders_messages_of_all_kinds(engine: Engine) -> None:
    said = [Message("user", "hello")]
    expected = engine.generate("[user] hello\n[assistant] ", **PLAIN).tokens
    assert engine.chat(said, **PLAIN).tokens == expected
    assert engine.chat("hello", **PLAIN).tokens == expected
    assert asyncio.run(engine.achat([{"role": "user", "content": "hello"}], **PLAIN)).tokens == expected
    assert drained(engine, said, **PLAIN).tokens == expected


def test_tools_are_called_with_valid_arguments(engine: Engine) -> None:
    function = {"name": "add", "parameters": {"properties": {"a": {"const": 5}}, "required": ["a"]}}
    listed = [{"type": "function", "function": function}]
    options: Any = {"temperature": 0.0, "max_tokens": 200, "tools": listed, "tool_choice": "required"}
    answer = engine.chat("add", **options, parallel_tool_calls=False)
    (call,) = tools.calls(answer.text)
    assert call.name == "add"
    assert call.arguments["a"] == 5
    again: list[dict[str, Any]] = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "10"},
    ]
    assert engine.chat(again, **PLAIN).usage.prompt_tokens > answer.usage.prompt_tokens // 4


def test_turns_of_a_session_reuse_the_cache(engine: Engine) -> None:
    session = engine.session()
    ids = engine.prompt(PROMPT)
    first = engine.generate(ids, **PLAIN, session=session)
    longer = [*ids, *first.tokens, *engine.encode(" and then")]
    second = asyncio.run(engine.agenerate(longer, **PLAIN, session=session))
    assert second.usage.cached_tokens >= len(ids) + len(first.tokens) - 1
    assert second.tokens == drained(engine, longer, **PLAIN, drafter="none").tokens
    engine.release(session)


@pytest.mark.parametrize("n_sessions", [1, 2])
def test_many_tasks_and_threads_take_turns(path: Path, n_sessions: int) -> None:
    with open_engine(path, n_sessions=n_sessions) as engine:
        prompts = [f"{i} {PROMPT}" for i in range(4)]
        expected = [drained(engine, prompt, **PLAIN, drafter="none").text for prompt in prompts]

        async def all_at_once() -> list[str]:
            return [r.text for r in await asyncio.gather(*(engine.agenerate(p, **PLAIN) for p in prompts))]

        found: dict[int, list[str]] = {}

        def work(i: int) -> None:
            found[i] = asyncio.run(all_at_once()) if i else [engine.generate(p, **PLAIN).text for p in prompts]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == dict.fromkeys(range(3), expected)
        assert len([t for t in threading.enumerate() if t.name == "edgespec-answer"]) >= 1


def test_a_cancelled_task_ends_its_answer_and_no_other(engine: Engine) -> None:
    async def play() -> None:
        stream = engine.astream(PROMPT, **LONG)
        await anext(stream)
        waiting = asyncio.create_task(engine.agenerate(PROMPT, **PLAIN))
        left = asyncio.create_task(engine.agenerate(PROMPT, **PLAIN))
        await asyncio.sleep(0)
        left.cancel()
        task = asyncio.create_task(_exhaust(stream))
        await asyncio.sleep(0)
        task.cancel()
        for each in (left, task):
            with pytest.raises(asyncio.CancelledError):
                await each
        assert (await waiting).usage.completion_tokens == 24
        await stream.aclose()
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.usage.completion_tokens < 1500

    asyncio.run(play())
    assert engine.generate(PROMPT, **PLAIN).finish_reason == "length"


async def _exhaust(stream: Any) -> None:
    async for _ in stream:
        pass


def test_a_stream_that_is_left_or_whose_loop_is_closed_lets_the_others_on(engine: Engine) -> None:
    async def leave() -> Any:
        async for _ in engine.astream(PROMPT, **LONG):
            break
        async with engine.astream(PROMPT, **LONG) as closed:
            await anext(closed)
        assert closed.result.finish_reason == "cancelled"
        kept = engine.astream(PROMPT, **LONG)
        await anext(kept)
        return kept

    kept = asyncio.run(leave())
    assert engine.generate(PROMPT, **PLAIN).finish_reason == "length"
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(_exhaust(kept))


def test_cancel_ends_what_plays_and_what_waits(engine: Engine) -> None:
    began = threading.Event()
    ends: list[object] = []

    def play() -> None:
        stream = engine.stream(PROMPT, **LONG)
        for _ in stream:
            began.set()
        ends.append(stream.result.finish_reason)

    async def ask() -> None:
        stream = engine.astream(PROMPT, **LONG)
        await anext(stream)
        waiting = asyncio.create_task(engine.agenerate(PROMPT, **PLAIN))
        await asyncio.sleep(0)
        await asyncio.to_thread(began.wait)
        engine.cancel()
        with pytest.raises(EvalCancelled, match="before it began"):
            await waiting
        await _exhaust(stream)
        ends.append(stream.result.finish_reason)

    thread = threading.Thread(target=play)
    thread.start()
    asyncio.run(ask())
    thread.join()
    assert ends == ["cancelled", "cancelled"]
    engine.cancel()
    assert engine.generate(PROMPT, **PLAIN).finish_reason == "length"


def test_cancel_in_a_prompt_ends_it_before_its_next_pass(engine: Engine) -> None:
    real, passes = engine.target.eval, list[bool]()
    prompt = [5, *range(3, 200)] * 9

    def watched(plans: Any) -> Any:
        passes.append(plans[0].rows)
        if len(passes) == 2:
            engine.cancel()  # as another thread would, while the prompt is evaluated
        return real(plans)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.target, "eval", watched)
        result = engine.generate(prompt, **PLAIN)
    assert result.finish_reason == "cancelled"
    assert result.tokens == ()
    assert passes == [False, False], "the prompt has more passes than these two"
    assert engine.generate(prompt, **PLAIN).finish_reason == "length"


def test_closing_ends_what_plays_and_tells_what_waits(path: Path) -> None:
    engine = open_engine(path)

    async def ask() -> None:
        stream = engine.astream(PROMPT, **LONG)
        await anext(stream)
        waiting = asyncio.create_task(engine.agenerate(PROMPT, **PLAIN))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.close)
        with pytest.raises(ModelError, match="the engine is closed"):
            await waiting
        await _exhaust(stream)
        assert stream.result.finish_reason == "cancelled"
        with pytest.raises(ModelError, match="the engine is closed"):
            await engine.agenerate(PROMPT)

    asyncio.run(ask())
    with pytest.raises(ModelError, match="the engine is closed"):
        engine.generate(PROMPT)
    engine.close()


def test_forked_children_refuse_and_spawned_ones_work(path: Path, tmp_path: Path) -> None:
    told = run("""
        import asyncio, multiprocessing, os, signal, warnings
        warnings.simplefilter("ignore")
        from edgespec.config import EngineConfig
        from edgespec.engine import Engine
        from edgespec.errors import ModelError
        engine = Engine.open(sys.argv[1], EngineConfig(n_ctx=256, threads=1))
        here = engine.generate("abc", max_tokens=5, temperature=0.0).text
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            for use in (engine.generate, engine.chat, lambda text: asyncio.run(engine.agenerate(text))):
                try:
                    use("abc")
                except ModelError as error:
                    print("forked" in str(error))
            engine.cancel()
            engine.close()
            print("closed", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        from spawned import answer
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(answer, (sys.argv[1],)) == here
        engine.close()
    """, path)  # fmt: skip
    assert told.splitlines() == ["True", "True", "True", "closed"]


def test_python_goes_on_while_the_model_computes(engine: Engine) -> None:
    """The interpreter's lock is not held in passes: another thread counts in the middle of one."""
    n, stop = 0, threading.Event()

    def count() -> None:
        nonlocal n
        while not stop.is_set():
            n += 1

    thread = threading.Thread(target=count)
    real = engine.target.eval
    during: list[int] = []

    def watched(plans: Any) -> Any:
        before = n
        rows = real(plans)
        during.append(n - before)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.target, "eval", watched)
        thread.start()
        engine.generate([*range(3, 200)] * 9, **PLAIN, session=engine.session())
        stop.set()
        thread.join()
    assert max(during) > 1000


@pytest.mark.slow
def test_loading_and_closing_does_not_leak(path: Path) -> None:
    """Source: abetlen/llama-cpp-python#1442."""
    told = run("""
        import gc
        from edgespec.config import EngineConfig
        from edgespec.device import host
        from edgespec.device.sysfs import Sysfs
        from edgespec.engine import Engine

        def load(n):
            for _ in range(n):
                with Engine.open(sys.argv[1], EngineConfig(n_ctx=64, threads=1)) as engine:
                    engine.generate("abc", max_tokens=2)
            gc.collect()
            return host.rss_bytes(Sysfs())

        before = load(20)
        print((load(180) - before) / 2**20)
    """, path)  # fmt: skip
    assert float(told) < 8
