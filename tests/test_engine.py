"""The engine on small real models of four memory kinds: same text drafted or not, foreign drafters contained, threads,
cancelling, forks, state that outlives a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf_maker
import pytest

from edgespec.answer import Stream
from edgespec.calibrate import calibrate
from edgespec.config import EngineConfig
from edgespec.core.cost import CostModel, CostTable
from edgespec.engine import Engine
from edgespec.errors import ConfigError, ContextFullError, ModelError
from edgespec.interfaces import Draft, Limits, Result, Sampling, Target
from edgespec.testing import ScriptedDrafter

PROMPT = list(b"abcabcabc the cat sat on the mat, the cat sat on the mat")
LIMITS = Limits(max_tokens=60, ignore_eog=True)


def finish(stream: Stream) -> Result:
    for _ in stream:
        pass
    return stream.result


@pytest.fixture(scope="module", params=gguf_maker.KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")


def sleepy() -> Sequence[int]:
    time.sleep(1.0)
    return [1]


def open_engine(path: Path, **options: object) -> Engine:
    return Engine.open(path, EngineConfig(n_ctx=256, threads=1, **options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3), Sampling(repeat_penalty=1.2)])
def test_drafted_is_plain_on_every_memory_kind(model: Path, sampling: Sampling) -> None:
    with open_engine(model) as engine:
        plain = finish(engine.stream(PROMPT, sampling, LIMITS, drafter="none"))

        def right(context: Sequence[int], limit: int) -> Sequence[int]:
            done = len(context) - len(PROMPT)
            return plain.tokens[done : done + min(limit, 5)]

        for drafter in ("auto", "ngram", ScriptedDrafter(right), ScriptedDrafter(lambda c, n: [7] * 64, "wrong")):
            limits = LIMITS if isinstance(drafter, str) else Limits(60, fixed_draft=15, ignore_eog=True)
            drafted = finish(engine.stream(PROMPT, sampling, limits, drafter=drafter))
            assert drafted.tokens == plain.tokens
            assert drafted.finish_reason == "length"
            assert drafted.report.drafter_off_reason is None
            if not isinstance(drafter, str):
                assert drafted.report.drafted > 0


def test_a_second_turn_is_right_whatever_the_memory_can_rewind(model: Path) -> None:
    """Source: xybrid-ai/xybrid#109: the second chat on a recurrent model."""
    with Engine.open(model, EngineConfig(n_ctx=512, threads=1), n_sessions=2) as engine:
        session = engine.session()
        first = finish(engine.stream(PROMPT, Sampling(), LIMITS, session=session))
        longer = [*PROMPT, *first.tokens, *b" and then"]
        shorter = [*PROMPT[:20], *b" something else"]
        for prompt in (longer, shorter, longer):
            again = finish(engine.stream(prompt, Sampling(), Limits(20, ignore_eog=True), session=session))
            fresh = finish(engine.stream(prompt, Sampling(), Limits(20, ignore_eog=True), drafter="none"))
            assert again.tokens == fresh.tokens
            assert fresh.usage.cached_tokens == 0
        if model.stem == "llama":  # a window of 16 tokens forgets what a longer rewind needs
            assert again.usage.cached_tokens >= 20


@pytest.mark.parametrize(
    ("play", "reason"),
    [
        (lambda c, n: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda c, n: [10**6], "proposed invalid tokens 3 times"),
        (lambda c, n: [-1], "proposed invalid tokens 3 times"),
        (lambda c, n: sleepy(), "too late 3 times in a row"),
        (lambda c, n: ["x"], "TypeError"),
    ],
)
def test_a_broken_drafter_is_cut_off_and_named(
    llama: Path, play: Callable[[Sequence[int], int], Sequence[int]], reason: str, request: pytest.FixtureRequest
) -> None:
    if "late" not in reason:
        request.getfixturevalue("patient")
    with open_engine(llama) as engine:
        plain = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="none"))
        broken = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter=ScriptedDrafter(play, "mine")))
        assert broken.tokens == plain.tokens
        assert broken.report.drafter == "none"
        assert broken.report.drafter_off_reason is not None
        assert reason in broken.report.drafter_off_reason


class UnspeakableError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raw:
    """A drafter that returns whatever it was given."""

    name = "raw"

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        return self._make()  # type: ignore[return-value]  # the point of it

    def close(self) -> None:
        """Nothing to free."""


def raising(error: BaseException) -> Callable[[], object]:
    def make() -> object:
        raise error

    return make


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (raising(SystemExit(5)), "SystemExit"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(UnspeakableError()), "UnspeakableError"),
        (lambda: None, "AttributeError"),
        (lambda: Draft((1, 2), (-1,), (0,), (0.5,)), "differ in length"),
        (lambda: Draft((1.5,), (-1,), (0,), (0.5,)), "TypeError"),  # type: ignore[arg-type]
        (lambda: Draft((1, 2), (-1, 0), (0, 0), (0.5, float("nan"))), "confidence"),
        (lambda: Draft([98, 99], [-1, 0], [0, 0], [0.5, 0.5]), None),  # type: ignore[arg-type]  # lists will do
        (lambda: Draft((98, 99, 97), (-1, -1, 1), (0, 0, 0), (0.5, 0.5, 0.5)), None),
    ],
)
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("fixed", [3, None])
def test_whatever_a_foreign_drafter_does_the_answer_is_whole(
    llama: Path, make: Callable[[], object], reason: str | None, fixed: int | None
) -> None:
    with open_engine(llama) as engine:
        plain = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="none"))
        limits = Limits(60, fixed_draft=fixed, ignore_eog=True)
        result = finish(engine.stream(PROMPT, Sampling(), limits, drafter=Raw(make)))
        assert result.tokens == plain.tokens
        assert result.finish_reason == "length"
        assert (result.report.drafter_off_reason is None) == (reason is None)
        assert reason is None or reason in (result.report.drafter_off_reason or "")


def test_a_late_cancel_touches_no_other_answer(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_engine(llama, drafter="none") as engine:
        done = engine.stream(PROMPT, Sampling(), Limits(2))
        finish(done)
        done.cancel()
        assert len(finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="ngram")).tokens) == 60
        engine.target.abort()  # another thread's cancel while this one calibrates
        engine._cost = None
        assert len(finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="ngram")).tokens) == 60


def test_closing_the_engine_keeps_what_was_said(llama: Path) -> None:
    for own in (False, True):
        engine = open_engine(llama)
        stream = engine.stream(PROMPT, Sampling(), LIMITS, session=engine.session() if own else None)
        text = "".join(next(stream).text for _ in range(4))
        engine.close()
        with pytest.raises(ModelError, match="closed"):
            next(stream)
        assert stream.result.text.startswith(text)
        assert stream.result.finish_reason == "cancelled"


def test_a_new_answer_ends_the_one_before_in_its_session(llama: Path) -> None:
    with open_engine(llama) as engine:
        alone = finish(engine.stream(PROMPT[5:], Sampling(), LIMITS)).tokens
        session = engine.session()
        first = engine.stream(PROMPT, Sampling(), LIMITS, session=session)
        n = sum(len(next(first).tokens) for _ in range(3))
        second = engine.stream(PROMPT[5:], Sampling(), LIMITS, session=session)
        next(second)
        assert len(finish(first).tokens) == n
        assert finish(second).tokens == alone


def test_one_drafter_serves_many_answers_and_stays_its_owners(llama: Path) -> None:
    drafter = ScriptedDrafter(lambda c, n: [98] * n)
    with open_engine(llama) as engine:
        for _ in range(2):
            finish(engine.stream(PROMPT, Sampling(), Limits(20, fixed_draft=2, ignore_eog=True), drafter=drafter))
    assert drafter.n_calls > 2
    assert not drafter.closed


def test_close_ends_an_answer_and_its_thread(llama: Path) -> None:
    with open_engine(llama) as engine:
        before = threading.active_count()
        for _ in range(5):
            stream = engine.stream(PROMPT, Sampling(), LIMITS, drafter=ScriptedDrafter(lambda c, n: [98]))
            next(stream)
            next(stream)
            stream.close()
            assert stream.result.finish_reason == "cancelled"
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() <= before


def test_near_the_context_limit(llama: Path) -> None:
    """Source: vllm-project/vllm#15154: every prompt length near the limit, with a long draft."""
    with Engine.open(llama, EngineConfig(n_ctx=64, threads=1)) as engine:
        for n in range(44, 65):
            prompt = (PROMPT * 3)[:n]
            limits = Limits(fixed_draft=8, ignore_eog=True)
            for drafter in ("ngram", ScriptedDrafter(lambda c, n: [98] * 64), "none"):
                result = finish(engine.stream(prompt, Sampling(), limits, drafter=drafter))
                assert result.finish_reason == "length"
                assert len(result.tokens) == 64 - n + 1
        with pytest.raises(ContextFullError, match="65 tokens"):
            engine.stream((PROMPT * 3)[:65])
        with pytest.raises(ContextFullError, match="give some text"):
            engine.stream([])


def test_a_context_beyond_the_trained_one_is_said(llama: Path) -> None:
    with Engine.open(llama, EngineConfig(n_ctx=2304, drafter="none")) as engine:
        assert [note for note in engine.notes if "trained for 2048 tokens of context, 2304 were asked for" in note]
    with Engine.open(llama, EngineConfig(n_ctx=2048, drafter="none")) as engine:
        assert not [note for note in engine.notes if "trained" in note]


def test_the_index_of_a_request_is_its_own(llama: Path) -> None:
    """Source: ggml-org/llama.cpp#27852: n-grams of the previous request."""
    with open_engine(llama) as engine:
        finish(engine.stream([100] * 200, Sampling(), Limits(5), drafter="ngram"))
        report = finish(engine.stream(list(range(3, 43)), Sampling(), Limits(1), drafter="ngram")).report
        assert report.drafted == 0


def test_two_threads_take_turns(llama: Path) -> None:
    """Source: abetlen/llama-cpp-python#471."""
    prompts = [PROMPT, list(b"one two three one two three one two")]
    with open_engine(llama) as engine:
        alone = [finish(engine.stream(p, Sampling(), LIMITS)).tokens for p in prompts]
        found: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}

        def ask(i: int) -> None:
            found[i] = [finish(engine.stream(prompts[i], Sampling(), LIMITS)).tokens for _ in range(10)]

        threads = [threading.Thread(target=ask, args=(i,)) for i in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(tokens == alone[i] for i in found for tokens in found[i])
        assert all(len(found[i]) == 10 for i in found)


def test_a_second_request_during_a_stream_harms_neither(llama: Path) -> None:
    with open_engine(llama) as engine:
        alone = finish(engine.stream(PROMPT, Sampling(), LIMITS))
        other = finish(engine.stream(PROMPT[10:], Sampling(), LIMITS))
        first = engine.stream(PROMPT, Sampling(), LIMITS)
        for _ in range(5):
            next(first)
        assert finish(engine.stream(PROMPT[10:], Sampling(), LIMITS)).tokens == other.tokens
        assert finish(first).tokens == alone.tokens


def test_cancel_keeps_what_was_said_and_the_next_answer_is_right(llama: Path) -> None:
    with open_engine(llama) as engine:
        whole = finish(engine.stream(PROMPT, Sampling(), LIMITS))
        session = engine.session()
        stream = engine.stream(PROMPT, Sampling(), LIMITS, session=session)
        n = sum(len(next(stream).tokens) for _ in range(4))
        stream.cancel()
        result = finish(stream)
        assert result.finish_reason == "cancelled"
        assert result.tokens == whole.tokens[:n]
        assert finish(engine.stream(PROMPT, Sampling(), LIMITS, session=session)).tokens == whole.tokens


def test_a_signal_handler_may_cancel_in_the_middle_of_a_prompt(llama: Path) -> None:
    with Engine.open(llama, EngineConfig(n_ctx=8192, threads=1)) as engine:
        whole = finish(engine.stream(PROMPT, Sampling(), LIMITS))
        stream = engine.stream((PROMPT * 200)[:8000], Sampling(), LIMITS)
        before = signal.signal(signal.SIGALRM, lambda *_: stream.cancel())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            result = finish(stream)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert result.finish_reason == "cancelled"
        assert result.tokens == ()
        assert finish(engine.stream(PROMPT, Sampling(), LIMITS)).tokens == whole.tokens


def test_forked_child_refuses_instead_of_hanging(llama: Path) -> None:
    """Source: microsoft/onnxruntime#7846 and the like: a fork after loading hangs in the thread pool."""
    with open_engine(llama) as engine:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                finish(engine.stream(PROMPT, Sampling(), LIMITS))
            except ModelError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_use_after_close_is_one_clear_error(llama: Path) -> None:
    engine = open_engine(llama)
    engine.close()
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        engine.stream(PROMPT)


def test_bad_requests_are_refused_before_anything_native(llama: Path) -> None:
    with open_engine(llama) as engine:
        with pytest.raises(ConfigError, match="choose one of auto, none, ngram"):
            engine.stream(PROMPT, drafter="ngrm")
        with pytest.raises(ConfigError, match="outside"):
            engine.stream([10**7])
        with pytest.raises(ConfigError, match="temperature"):
            engine.stream(PROMPT, Sampling(temperature=-1))
        with pytest.raises(ConfigError, match="nan"):
            engine.stream(PROMPT, Sampling(frequency_penalty=float("nan")))
        with pytest.raises(ConfigError, match="stop takes"):
            engine.stream(PROMPT, limits=Limits(stop="two"))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="logit_bias"):
            engine.stream(PROMPT, Sampling(logit_bias={10**7: 1.0}))


def test_a_second_run_starts_warm_and_survives_a_broken_or_unwritable_memory(
    llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Passes of a model this small are mostly noise, which would make the table suspect and drop it.
    monkeypatch.setattr(CostModel, "suspect", property(lambda self: False))

    def calibrations() -> list[str]:
        calls: list[str] = []

        def counted(target: Target, clock: Callable[[], float], widths: Sequence[int]) -> CostTable:
            calls.append("c")
            return calibrate(target, clock, widths=widths)

        with monkeypatch.context() as patch:
            patch.setattr("edgespec.machine.calibrate", counted)
            with open_engine(llama) as engine:
                finish(engine.stream(PROMPT, Sampling(), LIMITS))
                engine.close()
                calls.extend(note for note in engine.notes if "template" not in note)
        return calls

    assert calibrations() == ["c"]
    files = list(tmp_path.glob("edgespec/state/*.json"))
    assert len(files) == 1
    assert calibrations() == []
    files[0].write_text("{broken")
    broken = calibrations()
    assert broken[0] == "c"
    assert "cannot be read" in broken[1]
    assert calibrations() == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(files[0]))  # a file where a folder should be
    assert "is not saved" in calibrations()[-1]


def test_the_report_is_complete_and_consistent(llama: Path) -> None:
    with open_engine(llama) as engine:
        result = finish(engine.stream(PROMPT, Sampling(), LIMITS, drafter="ngram"))
        report = result.report
        assert sum(width * n for width, n in report.widths.items()) == report.rounds + report.drafted
        assert sum(report.widths.values()) == report.rounds
        assert report.accepted <= report.drafted
        assert report.rounds + report.accepted == len(result.tokens) - 1  # the first came with the prompt
        assert report.threads == 1
        assert report.cpus_target == tuple(sorted(os.sched_getaffinity(0)))
        assert report.load_s is not None
        assert report.load_s > 0
        assert report.rss_bytes is not None
        assert report.rss_bytes > 10**6
        assert report.ttft_s is not None
        assert report.ttft_s >= report.prefill_s > 0
