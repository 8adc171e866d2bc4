"""Loading and its failures, memory, lifetime, tokens."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_maker as maker
import pytest
from own_process import run

from edgespec.conditions import Team
from edgespec.errors import DeviceError, EvalCancelled, EvalError, ModelError, ModelFormatError
from edgespec.interfaces import Draft, Plan
from edgespec.target import lib
from edgespec.target.llama import load
from edgespec.target.options import KvType, TargetOptions

SMALL = TargetOptions(n_ctx=256)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker.make(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_importing_the_room_loads_no_library() -> None:
    run("""
        import edgespec.target.llama, edgespec.target.sizing, edgespec.target.gguf_check
        assert "llama_cpp" not in sys.modules
    """)


def test_loading_is_silent(tiny: Path) -> None:
    assert run("""
        import os
        os.dup2(1, 2)
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        load(sys.argv[1], TargetOptions(n_ctx=256)).close()
    """, tiny) == ""  # fmt: skip


def test_verbose_logs_to_stderr(tiny: Path) -> None:
    assert "llama" in run("""
        import os
        os.dup2(1, 2)
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        load(sys.argv[1], TargetOptions(n_ctx=256, verbose=True)).close()
    """, tiny)  # fmt: skip


def test_a_missing_binding_is_one_line() -> None:
    run("""
        sys.modules["llama_cpp"] = None
        from edgespec.errors import ModelError
        from edgespec.target import lib
        try:
            lib.native()
        except ModelError as error:
            assert "pip install llama-cpp-python" in str(error) and "\\n" not in str(error)
        else:
            raise SystemExit("no error")
    """)


def test_a_broken_binding_is_one_line(tmp_path: Path) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('Failed to load shared library\\nsecond line')")
    run("""
        sys.path.insert(0, sys.argv[1])
        from edgespec.errors import DeviceError
        from edgespec.target import lib
        try:
            lib.native()
        except DeviceError as error:
            assert "Failed to load" in str(error) and "\\n" not in str(error)
        else:
            raise SystemExit("no error")
    """, tmp_path)  # fmt: skip


def test_android_is_shown_as_linux_to_the_binding_only() -> None:
    run("""
        sys.platform = "android"
        from edgespec.target import lib
        lib.native()
        assert sys.platform == "android"
    """)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"general.architecture": "zzz", "zzz.block_count": 2, "zzz.embedding_length": 64}, "architecture: 'zzz'"),
        ({"llama.context_length": None}, "context_length"),
        ({"llama.block_count": 3}, "not found"),
    ],
)
def test_what_llama_cpp_refuses_names_the_cause(tmp_path: Path, meta: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as caught:
        load(maker.make(tmp_path / "m.gguf", meta=meta), SMALL)
    assert "\n" not in str(caught.value)


def test_close(tiny: Path) -> None:
    with load(tiny, SMALL) as target:
        target.eval([Plan(0, 0, [3])])
    target.close()
    calls: list[Any] = [
        lambda: target.eval([Plan(0, 0, [3])]),
        lambda: target.retain(0, 0),
        lambda: target.clear(0),
        lambda: target.encode("x"),
        lambda: target.piece(3),
        lambda: target.use_team(Team(1, 1)),
        lambda: target.metadata("general.name"),
    ]
    for call in calls:
        with pytest.raises(ModelError, match="closed"):
            call()


def test_twenty_loads_do_not_grow(tiny: Path) -> None:
    growth = run("""
        from pathlib import Path
        from edgespec.interfaces import Plan
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions

        def rss():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        def once():
            with load(sys.argv[1], TargetOptions(n_ctx=512)) as target:
                target.eval([Plan(0, 0, [5, 6, 7])])

        for _ in range(3):
            once()
        before = rss()
        for _ in range(20):
            once()
        print(rss() - before)
    """, tiny)  # fmt: skip
    assert int(growth) < 5_000_000


def test_a_forked_child_is_told_to_load_again(tiny: Path) -> None:
    run("""
        import os, signal, warnings
        warnings.simplefilter("ignore")
        from edgespec.errors import ModelError
        from edgespec.interfaces import Plan
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        target = load(sys.argv[1], TargetOptions(n_ctx=256, n_threads=2))
        target.eval([Plan(0, 0, [5, 6, 7])])
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                target.eval([Plan(0, 3, [5])])
            except ModelError as error:
                target.close()
                os._exit(0 if "forked" in str(error) else 3)
            os._exit(4)
        assert os.waitpid(child, 0)[1] == 0
        assert target.eval([Plan(0, 3, [5])])[0].shape[0] == 1
        target.close()
    """, tiny)  # fmt: skip


def test_a_large_vocabulary_costs_only_the_rows_asked_for(tmp_path: Path) -> None:
    """A buffer of all rows of 32,768 tokens over 151,936 words would be 19.9 GB; the address space has 2."""
    path = maker.make(tmp_path / "m.gguf", n_vocab=151_936)
    run("""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))
        from edgespec.interfaces import Draft, Plan
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        with load(sys.argv[1], TargetOptions(n_ctx=32768, n_rows_max=9)) as target:
            target.eval([Plan(0, 0, [5] * 512, rows=False)])
            draft = Draft(tuple(range(8)), tuple(range(-1, 7)), (0,) * 8, (1.0,) * 8)
            assert target.eval([Plan(0, 512, [7], draft)])[0].shape == (9, 151_936)
    """, path)  # fmt: skip


def test_no_memory_for_the_context_is_said(tiny: Path) -> None:
    run("""
        import resource
        from edgespec.errors import ModelMemoryError
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        load(sys.argv[1], TargetOptions(n_ctx=256)).close()
        resource.setrlimit(resource.RLIMIT_AS, (1_200_000_000, 1_200_000_000))
        try:
            load(sys.argv[1], TargetOptions(n_ctx=8_000_000))
        except ModelMemoryError as error:
            assert "smaller context" in str(error) and "\\n" not in str(error), error
        else:
            raise SystemExit("no error")
    """, tiny)  # fmt: skip


def test_a_file_that_cannot_be_mapped_is_read(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = lib.native()
    real = native.llama_model_load_from_file
    modes = []

    def refuse_mapping(path: bytes, params: Any) -> Any:
        modes.append(params.load_mode)
        return None if params.load_mode == native.LLAMA_LOAD_MODE_MMAP else real(path, params)

    monkeypatch.setattr(native, "llama_model_load_from_file", refuse_mapping)
    with load(tiny, SMALL) as target:
        assert len(modes) == 2
        assert any("read into memory" in note for note in target.notes)
        assert target.eval([Plan(0, 0, [5])])[0].shape[0] == 1


# Not q8_0: the tiny model's heads are narrower than its blocks.
@pytest.mark.parametrize("kv_type", ["f16", "bf16", "f32"])
def test_cache_types(tiny: Path, kv_type: KvType) -> None:
    with load(tiny, TargetOptions(n_ctx=256, kv_type_k=kv_type, kv_type_v=kv_type)) as target:
        assert target.eval([Plan(0, 0, [5, 6])])[0].shape[0] == 1


def test_an_impossible_cache_type_is_one_line(tiny: Path) -> None:
    with pytest.raises(ModelError, match="makes no context") as caught:
        load(tiny, TargetOptions(n_ctx=256, kv_type_k="q8_0", kv_type_v="q8_0"))
    assert "\n" not in str(caught.value)


def test_a_memory_that_keeps_what_it_should_drop_is_found_out(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache claims to have removed a token and has removed nothing: positions then do not follow."""
    native = lib.native()
    real = native.llama_memory_seq_rm

    def lie(memory: Any, seq_id: int, begin: int, end: int) -> bool:
        return True if begin > 0 else bool(real(memory, seq_id, begin, end))

    monkeypatch.setattr(native, "llama_memory_seq_rm", lie)
    with load(tiny, SMALL) as target:
        assert target.capabilities.max_rollback == 0
        assert not target.capabilities.rewind
        assert target.capabilities.off_reason == "rollback check failed"
        assert any("prefix reuse" in note for note in target.notes)
        with pytest.raises(EvalError, match="draft"):
            target.eval([Plan(0, 0, [5], Draft((6,), (-1,), (0,), (1.0,)))])


def test_a_state_that_is_not_kept_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming a state twice does nothing: going back then leads to an empty sequence."""
    mamba = maker.make(tmp_path / "mamba.gguf", "mamba")
    with load(mamba, replace(SMALL, n_rs_seq=4)) as target:
        assert target.capabilities.rollback == "replay"
    monkeypatch.setattr(lib.native(), "llama_memory_seq_cp", lambda *_: None)
    with load(mamba, replace(SMALL, n_rs_seq=4)) as target:
        assert target.capabilities.rollback is None
        assert target.capabilities.max_rollback == 0
        assert target.capabilities.off_reason == "rollback check failed"
        assert target.eval([Plan(0, 0, [5, 6])])[0].shape[0] == 1


def test_what_the_target_says_about_itself(tiny: Path) -> None:
    with load(tiny, TargetOptions(n_ctx=256, n_threads=2, n_seq_max=3, n_rows_max=1)) as target:
        assert target.name == "tiny llama"
        assert target.n_rows_max == 3
        assert target.n_ctx_train == 2048
        assert target.metadata("llama.block_count") == "2"
        assert target.metadata("absent") is None
        assert (target.n_threads, target.n_threads_batch) == (2, 2)
        assert target.use_team(Team(1, 2)) is None
        assert (target.n_threads, target.n_threads_batch) == (1, 2)
        with pytest.raises(ModelError, match="0 and 1"):
            target.use_team(Team(0, 1))


def test_tokens(tiny: Path) -> None:
    with load(tiny, SMALL) as target:
        assert target.eog == {maker.EOS, maker.EOT}
        assert target.encode("a")[-1] == 3 + ord("a")
        assert target.encode("a", bos=True)[0] == maker.BOS
        assert target.encode("<s>a", bos=True).count(maker.BOS) == 1
        assert maker.EOS in target.encode("a</s>")
        assert maker.EOS not in target.encode("a</s>", special=False)
        assert [target.piece(token) for token in (maker.BOS, maker.EOS, maker.EOT)] == [b"", b"", b""]
        assert target.piece(3 + 0xE2) == b"\xe2"
        assert target.vocab.written(maker.EOS) == "</s>"
        assert target.vocab.written(-1) == ""
        with pytest.raises(ModelError, match="outside the vocabulary"):
            target.piece(maker.N_VOCAB)


@pytest.mark.parametrize("text", ["", "a\0b", "é👩‍🚀", "x" * 5000, "\ud83d\ude00", "\ud800", "a\udfffb"])
def test_any_text_can_be_encoded(tiny: Path, text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    with load(tiny, SMALL) as target:
        assert b"".join(map(target.piece, target.encode(text, special=False))).decode() == whole


def test_a_long_run_of_characters_does_not_overflow_the_stack(tmp_path: Path) -> None:
    """Tokenizers with a regular expression recurse once a character; threads may have half a megabyte of stack."""
    tokens = ["<unk>", "<s>", "</s>", *map(chr, range(33, 127))]
    meta = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "deepseek-llm",
        "tokenizer.ggml.tokens": tokens + [f"w{index}" for index in range(maker.N_VOCAB - len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *([1] * (maker.N_VOCAB - 3))],
        "tokenizer.ggml.merges": ["w 0"],
    }
    path = maker.make(tmp_path / "bpe.gguf", meta=meta)
    run("""
        import threading
        from edgespec.errors import ModelError
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        target = load(sys.argv[1], TargetOptions(n_ctx=256))
        lengths = []
        threading.stack_size(1 << 19)
        thread = threading.Thread(target=lambda: lengths.append(len(target.encode("a" * 20_000 + "</s>"))))
        thread.start()
        thread.join()
        assert lengths == [20_001], lengths
        assert threading.stack_size() == 1 << 19
        try:
            target.encode("a" * 300_000)
        except ModelError as error:
            assert "300000 characters in a row" in str(error)
        else:
            raise SystemExit("no error")
    """, path)  # fmt: skip


def test_without_a_native_flag_cancelling_waits_and_says_so(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lib, "_strlen", lambda: None)
    with load(tiny, SMALL) as target:
        assert any("cannot be cancelled" in note for note in target.notes)
        target.abort()
        with pytest.raises(EvalCancelled):
            target.eval([Plan(0, 0, [5])])
        target.resume()
        assert target.eval([Plan(0, 0, [5])])[0].shape[0] == 1


def test_a_symbol_the_library_lacks_is_one_line() -> None:
    with pytest.raises(DeviceError, match="lacks no_such_function"):
        lib.symbol("no_such_function", None, ())
    assert not lib.cpu_has("no_such_feature")
    assert isinstance(lib.repacked_types(), frozenset)


@pytest.mark.model
def test_closing_ends_a_pass_in_another_thread(default_model: Path) -> None:
    target = load(default_model, TargetOptions(n_ctx=1024))
    raised: list[BaseException] = []

    def prefill() -> None:
        try:
            target.eval([Plan(0, 0, [7] * 512, rows=False)])
        except ModelError as error:
            raised.append(error)

    thread = threading.Thread(target=prefill)
    thread.start()
    time.sleep(0.05)
    target.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(raised) == 1
