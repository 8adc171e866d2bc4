"""How many bytes a model needs, before and after it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf_maker as maker
import pytest
from own_process import run

from edgespec.errors import ModelError, ModelMemoryError
from edgespec.target.gguf_check import check
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions
from edgespec.target.sizing import choose_n_ctx, estimate


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker.make(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_context_by_free_memory(tiny: Path) -> None:
    info = check(tiny)
    assert choose_n_ctx(info, None) == 2048
    assert choose_n_ctx(info, None, 100) == 100
    assert choose_n_ctx(info, 10**12, 5000) == 5000
    full = estimate(info, TargetOptions(n_ctx=2048)).total
    assert choose_n_ctx(info, full) == 2048
    assert choose_n_ctx(info, full - 1) == 1024
    least = estimate(info, TargetOptions(n_ctx=512)).total
    assert choose_n_ctx(info, least) == 512
    with pytest.raises(ModelMemoryError, match=r"needs \d+ MB .* \d+ MB is free"):
        choose_n_ctx(info, least - 1)
    with pytest.raises(ModelMemoryError, match="smaller context"):
        choose_n_ctx(info, least, 100_000)
    with pytest.raises(ModelError, match="at least 1"):
        choose_n_ctx(info, None, 0)


@pytest.mark.parametrize(("kind", "n_states"), [("lfm2", 8), ("mamba", 2), ("rwkv7", 2), ("granitehybrid", 2)])
def test_states_for_taking_tokens_back_are_counted_as_llama_cpp_grants_them(
    tmp_path: Path, kind: str, n_states: int
) -> None:
    info = check(maker.make(tmp_path / f"{kind}.gguf", kind))
    options = TargetOptions(n_ctx=256, n_rs_seq=7)
    one, more = estimate(info, replace(options, n_rs_seq=0)).cache, estimate(info, options).cache
    assert more - one == (n_states - 1) * info.recurrent_bytes > 0
    with load(info.path, options) as target:
        assert target.capabilities.rollback == ("snapshots" if n_states == 8 else "replay")


def test_a_model_larger_than_memory_is_refused_before_loading(tmp_path: Path) -> None:
    path = maker.make(tmp_path / "m.gguf")
    with path.open("r+b") as file:
        file.truncate(1_600_000_000)
    with pytest.raises(ModelMemoryError, match=r"needs 1\d\d\d MB .* 614 MB is free"):
        choose_n_ctx(check(path), 600_000 * 1024)


@pytest.mark.model
def test_peak_memory_is_under_the_estimate_and_the_budget(default_model: Path) -> None:
    options = TargetOptions(n_ctx=4096)
    info = check(default_model)
    expected = estimate(info, options)
    peak = int(run("""
        from pathlib import Path
        from edgespec.interfaces import Draft, Plan
        from edgespec.target.llama import load
        from edgespec.target.options import TargetOptions
        with load(sys.argv[1], TargetOptions(n_ctx=4096)) as target:
            target.eval([Plan(0, 0, [7] * 512, rows=False)])
            draft = Draft(tuple(range(15)), tuple(range(-1, 14)), (0,) * 15, (1.0,) * 15)
            target.eval([Plan(0, 512, [7], draft)])
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                print(int(line.split()[1]) * 1024)
    """, default_model))  # fmt: skip
    assert peak <= info.file_bytes + expected.repacked + expected.cache + 150_000_000
    assert peak <= expected.total <= 1.3 * peak
