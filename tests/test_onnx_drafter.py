"""The drafter of a package: both engines give the same tokens, and whatever is wrong with it the answer goes on."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf_maker
import numpy as np
import onnx_maker as maker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.config import EngineConfig
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.drafting import Drafting
from edgespec.draft import onnx, package
from edgespec.draft.onnx import OnnxDrafter
from edgespec.engine import Engine
from edgespec.errors import DrafterError
from edgespec.interfaces import Draft, Limits, Result, Sampling

N_HIDDEN, N_ROWS = 24, 60
VOCABULARY = np.arange(100, 100 + N_ROWS)
UNKNOWN = N_ROWS


def floats(*numbers: float) -> maker.Array:
    return np.array(numbers, np.float32)


def predictor(folder: Path, **changes: object) -> Path:
    options = {"kind": "hidden", "n_hidden": N_HIDDEN, "vocabulary": VOCABULARY, "unknown": UNKNOWN, **changes}
    return maker.write(folder, maker.next_hidden(N_HIDDEN, N_ROWS, 16), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.Loaded]:
    folder = predictor(tmp_path_factory.mktemp("packages") / "p")
    return {engine: onnx.load(folder, engine=engine) for engine in onnx.ENGINES}


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.01, 1.0, 30.0]), token=st.integers(0, N_ROWS))
def test_onnxruntime_and_numpy_give_the_same_tokens(
    both: dict[str, onnx.Loaded], seed: int, size: float, token: int
) -> None:
    state = (size * np.random.default_rng(seed).normal(size=(1, N_HIDDEN))).astype(np.float32)
    feeds: dict[str, maker.Array] = {"hidden": state, "tokens": np.array([[token]], np.int64)}
    (tokens, claims), (same_tokens, same_claims) = (both[engine].runner.run(feeds) for engine in onnx.ENGINES)
    assert tokens.tolist() == same_tokens.tolist()
    assert np.allclose(claims, same_claims, atol=1e-5)


def test_every_operator_that_numpy_knows_means_what_onnxruntime_means(tmp_path: Path) -> None:
    """Through one graph that uses them all, in the forms exporters write."""
    g = maker.Maker()
    vector = g.op("Cast", g.op("Reshape", "tokens", g.weight(np.array([0, -1], np.int64))), to=1)
    x = g.op("Div", g.op("Sub", vector, g.op("ReduceMean", vector, axes=[1], keepdims=1)), g.weight(floats(3)))
    square = g.op("Sqrt", g.op("ReduceMean", g.op("Pow", x, g.weight(floats(2))), axes=[-1], keepdims=1))
    x = g.op("Mul", x, g.op("Reciprocal", g.op("Add", square, g.weight(floats(1e-3)))))
    ramp = np.linspace(-1, 1, 24).astype(np.float32).reshape(6, 4)
    y = g.op("Gemm", x, g.weight(ramp), g.weight(floats(1, 2, 3, 4)), alpha=0.5, beta=2.0)
    y = g.op("Add", y, g.op("Gemm", x, g.weight(np.ascontiguousarray(ramp.T)), transB=1))
    whole, scale = np.arange(-12, 12, dtype=np.int8).reshape(6, 4), floats(0.1, 0.2, 0.3, 0.4)
    y = g.op("Add", y, g.op("MatMul", x, g.op("DequantizeLinear", g.weight(whole), g.weight(scale), axis=1)))
    y = g.op("Concat", g.op("Tanh", y), g.op("Relu", y), g.op("Neg", g.op("Sigmoid", y)), axis=1)
    y = g.op("Slice", y, *(g.weight(np.array([n], np.int64)) for n in (1, 11, 1, 2)))
    y = g.op("Transpose", g.op("Identity", y), perm=[1, 0])
    y = g.op("Squeeze", y, g.weight(np.array([1], np.int64)))
    y = g.op("Unsqueeze", y, g.weight(np.array([0], np.int64)))
    y = g.op("Where", g.op("Less", y, g.weight(floats(0))), g.op("Exp", y), y)
    y = g.op("Mul", y, g.op("Cast", g.op("Greater", y, g.weight(floats(-9))), to=1))
    likely = g.op("Softmax", y, axis=-1)
    part = g.op("Div", likely, g.op("ReduceSum", likely, g.weight(np.array([1], np.int64)), keepdims=1))
    constant = g.op("Constant", value=np.array([1, 4], np.int64))
    best = g.op("ArgMax", y, axis=1, keepdims=0)
    g.node("Concat", [best, g.op("Constant", value_ints=[7])], ["draft"], axis=0)
    g.node("Reshape", [g.op("Gather", part, constant, axis=1), g.weight(np.array([2], np.int64))], ["confidence"])
    graph = g.model([maker.port("tokens", 7, (1, 6))], maker.ports_out(2))
    folder = maker.write(tmp_path / "all", graph, n_tokens=6, n_draft=2)
    loaded = [onnx.load(folder, engine=engine) for engine in onnx.ENGINES]
    rng = np.random.default_rng(1)
    for _ in range(30):
        feeds = {"tokens": rng.integers(0, 99, (1, 6))}
        (tokens, claims), (same_tokens, same_claims) = (each.runner.run(feeds) for each in loaded)
        assert tokens.tolist() == same_tokens.tolist()
        assert np.allclose(claims, same_claims, atol=1e-6)


def test_a_graph_that_numpy_cannot_compute_is_refused_in_one_line(tmp_path: Path) -> None:
    g = maker.Maker()
    g.node("Identity", [g.op("Erf", g.weight(np.zeros(4, np.float32)))], ["confidence"])
    g.node("Reshape", ["tokens", g.weight(np.array([4], np.int64))], ["draft"])
    graph = g.model([maker.port("tokens", 7, (1, 4))], maker.ports_out(4))
    folder = maker.write(tmp_path / "erf", graph, n_tokens=4)
    assert onnx.load(folder, engine="onnxruntime").note is None
    with pytest.raises(DrafterError, match=r"^erf: numpy cannot compute its graph \(operator ai.onnx.Erf\)"):
        onnx.load(folder, engine="numpy")


def test_a_state_is_wanted_for_exactly_this_text(both: dict[str, onnx.Loaded]) -> None:
    drafter = OnnxDrafter(loaded=both["numpy"])
    assert (drafter.name, drafter.reads_hidden) == ("onnx:p", True)
    text, state = [1, 2, 103], np.linspace(-2, 2, N_HIDDEN).astype(np.float32)
    assert drafter.propose(text, 4) == drafter.propose([], 4) == Draft()
    drafter.observe(text, state)
    draft = drafter.propose(text, 4)
    state[:] = 0  # a view of the target's: it was copied
    assert drafter.propose(text, 4) == draft
    assert len(draft.tokens) == 4
    assert set(draft.tokens) <= set(VOCABULARY.tolist())
    assert drafter.propose(text, 2) == dataclasses.replace(
        draft, tokens=draft.tokens[:2], parents=(-1, 0), strength=draft.strength[:2], confidence=draft.confidence[:2]
    )
    assert drafter.propose(list(text), 4) == Draft()
    text.append(104)
    assert drafter.propose(text, 4) == Draft()
    drafter.close()
    drafter.close()
    drafter.observe(text, np.zeros(N_HIDDEN, np.float32))
    assert drafter.propose(text, 4) == Draft()


def test_tokens_it_does_not_know(tmp_path: Path) -> None:
    counting = maker.counting(n_window=3)
    ids = np.arange(50, 58)
    for unknown, expected in ((None, ()), (2, (53, 54, 55, 56))):
        folder = maker.write(tmp_path / f"u{unknown}", counting, n_tokens=3, vocabulary=ids, unknown=unknown)
        drafter = OnnxDrafter(loaded=onnx.load(folder))
        assert not drafter.reads_hidden
        assert drafter.propose([7, 8, 50], 3).tokens == (51, 52, 53)[: 3 if unknown is None else 1]
        assert drafter.propose([50], 2).tokens == (51, 52)[: 2 if unknown is None else 1]
        assert drafter.propose([50, 9], 4).tokens == expected


def test_without_a_vocabulary_ids_are_the_targets_and_padding_is_unknown(tmp_path: Path) -> None:
    folder = maker.write(tmp_path / "p", maker.counting(n_window=3), n_tokens=3, n_vocab=20)
    drafter = OnnxDrafter(loaded=onnx.load(folder))
    assert drafter.propose([1, 2, 3], 9).tokens == (4, 5, 6, 7)
    assert drafter.propose([9] * 600 + [3], 9).tokens == (4, 5, 6, 7)  # its window slides
    assert drafter.propose([1, 2, 25], 9).tokens == ()


def test_classes_of_confidence_are_learned_apart(tmp_path: Path) -> None:
    """A claim of 0.9 that comes true one time in four is soon taken for that; a claim of 0.3 is not touched."""
    folder = maker.write(tmp_path / "p", maker.counting(confidence=[0.9, 0.9, 0.3, 0.3]), n_tokens=3)
    draft = OnnxDrafter(loaded=onnx.load(folder)).propose([1, 2, 3], 4)
    assert len(set(draft.strength)) == 4  # by place, and by confidence
    assert all(0 <= strength < 64 for strength in draft.strength)
    acceptance = Acceptance(Prior(), 0.0)
    for n in range(80):
        acceptance.score("onnx:p", draft, (4,) if n % 4 == 0 else (9,))
    sure, _, doubtful, _ = acceptance.rates("onnx:p", draft)
    assert 0.1 < sure < 0.45
    assert doubtful == pytest.approx(0.3)


BAD = {
    "nan": maker.counting(confidence=[0.9, 0.9, np.nan, 0.9]),
    "above 1": maker.counting(confidence=1.5),
    "below 0": maker.counting(confidence=-0.5),
    "ids": maker.counting(step=200),
    "negative ids": maker.counting(step=-200),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("engine", onnx.ENGINES)
def test_values_that_are_no_draft_are_dropped_and_the_drafter_after_three(
    tmp_path: Path, case: str, engine: str
) -> None:
    folder = maker.write(tmp_path / "bad", BAD[case], n_tokens=3)
    drafting = Drafting(OnnxDrafter(loaded=onnx.load(folder, engine=engine)), 270)
    for n in range(5):
        assert drafting.propose([1, 2, 100], 4).tokens == ()
        assert (drafting.off_reason is not None) == (n >= 2)
    assert drafting.off_reason == (
        "onnx:bad raised DrafterError: its graph gave ids or confidences out of range 3 times"
    )


def test_outputs_of_another_shape_are_refused_when_loading(tmp_path: Path) -> None:
    folder = maker.write(tmp_path / "p", maker.counting(n_draft=3), n_tokens=3, n_draft=4)
    for engine in onnx.ENGINES:
        with pytest.raises(DrafterError, match=r"^p: its graph gives \(3,\) int64 and \(3,\) float32, not 4 int64"):
            onnx.load(folder, engine=engine)


def test_a_graph_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    g = maker.Maker()
    g.node("NoSuchThing", ["tokens"], ["draft"])
    g.node("Identity", ["nowhere"], ["confidence"])
    folder = maker.write(tmp_path / "p", g.model([maker.port("tokens", 7, (1, 1))], maker.ports_out(4)))
    with pytest.raises(DrafterError, match=r"^p: onnxruntime \S+ refuses its graph \(.*\)$") as caught:
        onnx.load(folder)
    assert "\n" not in str(caught.value)


# --- onnxruntime that is missing, broken, or hungry ---


def test_without_onnxruntime_numpy_computes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    loaded = onnx.load(maker.write(tmp_path / "p", maker.counting(), n_tokens=3))
    assert loaded.runner.name == "numpy"
    assert loaded.note == "p is computed by numpy, which takes longer: onnxruntime is not installed"
    assert OnnxDrafter(loaded=loaded).propose([1, 2, 3], 2).tokens == (4, 5)
    with pytest.raises(DrafterError, match="p: onnxruntime is not installed"):
        onnx.load(tmp_path / "p", engine="onnxruntime")


@pytest.mark.parametrize("error", ["ImportError", "AttributeError", "RuntimeError", "OSError"])
def test_a_broken_onnxruntime_is_one_line_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    """Source: microsoft/onnxruntime#20937 and wheels built for another numpy, which print pages and then raise."""
    broken = tmp_path / "site" / "onnxruntime"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        "import os, sys\nprint('A module that was compiled using NumPy 1.x')\nprint('pages', file=sys.stderr)\n"
        f"raise {error}('telemetry off: ' + os.environ['ORT_DISABLE_TELEMETRY'] + chr(10) + 'a second line')\n",
        encoding="utf-8",
    )
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.syspath_prepend(broken.parent)
    loaded = onnx.load(maker.write(tmp_path / "p", maker.counting(), n_tokens=3))
    assert loaded.runner.name == "numpy"
    assert loaded.note is not None
    assert f"onnxruntime does not work ({error}: telemetry off: 1)" in loaded.note
    assert capsys.readouterr() == ("", "")


_ALONE = """
import os, sys
sys.path.insert(0, {tests!r})
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from pathlib import Path
from edgespec.draft import onnx
import onnxruntime
before = len(os.listdir("/proc/self/task"))
drafter = onnx.OnnxDrafter(loaded=onnx.load(Path({folder!r}), engine="onnxruntime"))
drafter.propose([1, 2, 3], 4)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity calls")
def test_onnxruntime_starts_no_threads_and_is_quiet_on_a_narrow_cpuset(tmp_path: Path) -> None:
    """No pool, so nothing spins and nothing is pinned. Source: microsoft/onnxruntime#8313, #10113, PR#11841."""
    folder = maker.write(tmp_path / "p", maker.counting(), n_tokens=3)
    code = _ALONE.format(tests=str(Path(__file__).parent), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


_CPU_TIME = """
import sys, time
sys.path.insert(0, {tests!r})
import numpy as np
from edgespec.draft import numpy_eval, onnx
from pathlib import Path
runner = onnx.load(Path({folder!r}), engine="numpy").runner
feeds = {{"hidden": np.ones((1, 512), np.float32), "tokens": np.array([[1]])}}
before = numpy_eval._threads and numpy_eval._threads[0]()
mine, all_threads = time.thread_time(), time.process_time()
for _ in range(40):
    runner.run(feeds)
mine, all_threads = time.thread_time() - mine, time.process_time() - all_threads
assert before == (numpy_eval._threads and numpy_eval._threads[0]())
print(all_threads <= 1.2 * mine + 0.02)
"""


def test_numpy_computes_on_the_calling_thread_alone_and_leaves_its_threads_as_they_were(tmp_path: Path) -> None:
    """A second one would spin beside the target's team: processor time is the calling thread's, or nearly."""
    graph = maker.next_hidden(512, 1024, 256)
    folder = maker.write(tmp_path / "p", graph, kind="hidden", n_hidden=512, n_vocab=1025)
    code = _CPU_TIME.format(tests=str(Path(__file__).parent), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_package_is_loaded_once_while_somebody_has_it(tmp_path: Path) -> None:
    folder = maker.write(tmp_path / "p", maker.counting(), n_tokens=3)
    first = onnx.load(folder)
    assert onnx.load(folder) is first
    assert onnx.load(folder, engine="numpy") is not first
    maker.write(folder, maker.counting(confidence=0.5), n_tokens=3)
    assert onnx.load(folder) is not first


# --- in an engine ---


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "llama.gguf")


@pytest.fixture
def engine(llama: Path) -> Iterator[Engine]:
    with Engine.open(llama, EngineConfig(n_ctx=256, threads=1)) as opened:
        yield opened


def fitting(folder: Path, engine: Engine, kind: str, **changes: object) -> Path:
    """A package for the model of an engine."""
    trained = engine.target.info.trained
    assert trained is not None
    n_vocab = gguf_maker.N_VOCAB
    options = {"tokenizer": engine.target.vocab.digest(n_vocab), "n_vocab": n_vocab, "model": trained, **changes}
    if kind == "token":
        return maker.write(folder, maker.counting(), n_tokens=3, **options)  # type: ignore[arg-type]
    options = {"n_hidden": gguf_maker.N_EMBD, **options}
    graph = maker.next_hidden(int(str(options["n_hidden"])), n_vocab - 1, 16)
    return maker.write(folder, graph, kind="hidden", **options)  # type: ignore[arg-type]


PROMPT = list(b"a text that nothing in it repeats")
LIMITS = Limits(40, ignore_eog=True)


def answer(engine: Engine, drafter: str, limits: Limits = LIMITS) -> Result:
    stream = engine.stream(PROMPT, None, limits, drafter=drafter)
    for _ in stream:
        pass
    return stream.result


@pytest.mark.parametrize("kind", ["token", "hidden"])
def test_a_package_in_use_drafts_and_the_text_is_the_models_own(engine: Engine, tmp_path: Path, kind: str) -> None:
    package.use(package.install(fitting(tmp_path / "mine", engine, kind)).name)
    plain = answer(engine, "none")
    for limits in (LIMITS, dataclasses.replace(LIMITS, fixed_draft=3)):
        alone, beside = answer(engine, "onnx", limits), answer(engine, "auto", limits)
        assert alone.tokens == beside.tokens == plain.tokens
        assert alone.report.drafter == "onnx:mine"
        assert beside.report.drafter == "ngram+onnx:mine"
        assert alone.report.notes == plain.report.notes
        if limits.fixed_draft:
            assert alone.report.drafted > alone.report.rounds
            assert beside.report.drafted > 0


@pytest.mark.parametrize("drafter", ["auto", "onnx"])
def test_opening_a_model_says_why_the_package_in_use_is_left_out(llama: Path, tmp_path: Path, drafter: str) -> None:
    package.use(package.install(maker.write(tmp_path / "mine", maker.counting(), n_tokens=3)).name)
    with Engine.open(llama, EngineConfig(n_ctx=256, threads=1, drafter=drafter)) as engine:
        assert [note for note in engine.notes if note.startswith("the drafter onnx is left out: mine: ")]
        assert answer(engine, drafter).report.drafter == "ngram"
    with Engine.open(llama, EngineConfig(n_ctx=256, threads=1, drafter="none")) as engine:
        assert not [note for note in engine.notes if "left out" in note]


def test_auto_leaves_packages_alone_until_one_is_chosen(engine: Engine, tmp_path: Path) -> None:
    package.install(fitting(tmp_path / "mine", engine, "token"))
    assert answer(engine, "auto").report.drafter == "ngram"


REFUSED: dict[str, tuple[str | None, dict[str, object], str]] = {
    "no package": (None, {}, "no drafter package is in use: `edgespec drafter use NAME` chooses one"),
    "gone": ("gone", {}, "no drafter package is named 'gone'"),
    "other tokenizer": ("mine", {"tokenizer": "2" * 64}, "mine: it was trained for the tokenizer of tiny llama"),
    "other weights": ("mine", {"model": "2" * 64}, "and tiny llama has other weights"),
    "other length": ("mine", {"n_hidden": 72}, "mine: it reads hidden states of length 72, those of tiny llama"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_package_that_cannot_serve_is_one_line_and_ngrams_draft(engine: Engine, tmp_path: Path, case: str) -> None:
    name, changes, expected = REFUSED[case]
    package.install(fitting(tmp_path / "mine", engine, "hidden", **changes))
    package.use(name)
    plain = answer(engine, "none")
    drafted = answer(engine, "onnx", dataclasses.replace(LIMITS, fixed_draft=3))
    assert drafted.tokens == plain.tokens
    assert drafted.report.drafter == "ngram"
    said = [note for note in drafted.report.notes if "left out" in note]
    assert len(said) == 1
    assert said[0].startswith("the drafter onnx")
    assert expected in said[0]
    assert answer(engine, "onnx").report.notes == drafted.report.notes  # said once


def test_a_package_that_goes_wrong_meanwhile_is_dropped_and_reported(engine: Engine, tmp_path: Path) -> None:
    n_vocab = gguf_maker.N_VOCAB
    folder = maker.write(
        tmp_path / "mine", BAD["nan"], n_tokens=3, n_vocab=n_vocab, tokenizer=engine.target.vocab.digest(n_vocab)
    )
    package.use(package.install(folder).name)
    plain = answer(engine, "none")
    drafting = dataclasses.replace(LIMITS, fixed_draft=3)
    alone, beside = answer(engine, "onnx", drafting), answer(engine, "auto", drafting)
    why = "onnx:mine raised DrafterError: its graph gave ids or confidences out of range 3 times"
    assert alone.tokens == beside.tokens == plain.tokens
    assert (alone.report.drafter, alone.report.drafter_off_reason) == ("none", why)
    assert (beside.report.drafter, beside.report.drafter_off_reason) == ("ngram", None)
    assert why in beside.report.notes


@pytest.mark.parametrize("kind", ["lfm2", "mamba"])
def test_a_memory_that_cannot_drop_tokens_gives_no_states(tmp_path: Path, kind: str) -> None:
    path = gguf_maker.make(tmp_path / f"{kind}.gguf", kind)
    with Engine.open(path, EngineConfig(n_ctx=256, threads=1)) as engine:
        n_vocab = gguf_maker.N_VOCAB
        folder = maker.write(
            tmp_path / "mine", maker.next_hidden(64, n_vocab - 1), kind="hidden", n_hidden=64, n_vocab=n_vocab,
            tokenizer=engine.target.vocab.digest(n_vocab), model=engine.target.info.trained or "1" * 64,
        )  # fmt: skip
        package.use(package.install(folder).name)
        notes = answer(engine, "onnx").report.notes
        assert [note for note in notes if "hidden states, which tiny" in note]


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_default_models_text_is_its_own_whatever_a_package_guesses(
    default_model: Path, tmp_path: Path, temperature: float
) -> None:
    sampling = Sampling(temperature, seed=5)
    with Engine.open(default_model, EngineConfig(n_ctx=512, threads=1)) as engine:
        target, rows = engine.target, np.arange(200, 260)
        folder = maker.write(
            tmp_path / "mine", maker.next_hidden(target.n_hidden, len(rows), 16), kind="hidden",
            n_hidden=target.n_hidden, n_vocab=target.n_vocab, tokenizer=target.vocab.digest(target.n_vocab),
            model=str(target.info.trained), vocabulary=rows, unknown=len(rows),
        )  # fmt: skip
        package.use(package.install(folder).name)
        results = []
        for drafter in ("none", "onnx"):
            prompt = engine.prompt("A list of fruits, each with its colour: apples are")
            stream = engine.stream(prompt, sampling, Limits(40, fixed_draft=3), drafter=drafter)
            for _ in stream:
                pass
            results.append(stream.result)
    plain, drafted = results
    assert drafted.report.drafter == "onnx:mine"
    assert drafted.report.drafted > 60
    assert drafted.tokens == plain.tokens
