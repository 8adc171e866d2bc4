"""The real llama.cpp on tiny models: rows, sequences, rewinding, cancelling, refusing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf_maker as maker
import numpy as np
import pytest

from edgespec.errors import ContextFullError, EvalCancelled, EvalError
from edgespec.interfaces import NO_DRAFT, Draft, Plan, Row
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions

TEXT = [5, 99, 17, 200, 42, 8, 77, 150, 33, 210, 64, 3]
REWINDING = ("llama", "gemma3")
OPTIONS = TargetOptions(n_ctx=512, n_seq_max=3, n_rows_max=8, n_batch=64, n_rs_seq=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {kind: maker.make(folder / f"{kind}.gguf", kind) for kind in maker.KINDS}


@pytest.fixture(params=maker.KINDS)
def target(request: pytest.FixtureRequest, tiny: dict[str, Path]) -> Iterator[LlamaTarget]:
    with load(tiny[request.param], OPTIONS) as opened:
        yield opened


@pytest.fixture
def dense(tiny: dict[str, Path]) -> Iterator[LlamaTarget]:
    with load(tiny["llama"], OPTIONS) as opened:
        yield opened


def chain(tokens: list[int]) -> Draft:
    n = len(tokens)
    return Draft(tuple(tokens), tuple(range(-1, n - 1)), (0,) * n, (1.0,) * n)


def straight(target: LlamaTarget, tokens: list[int], seq_id: int = 0) -> Row:
    """The row after `tokens`, evaluated in one batch from an empty cache, which is empty again afterwards."""
    target.clear(seq_id)
    row: Row = target.eval([Plan(seq_id, 0, tokens)])[0][0].copy()
    target.clear(seq_id)
    return row


def close(left: Row, right: Row) -> bool:
    return bool(np.abs(left - right).max() < 0.02 * np.ptp(right))


def test_rows_of_a_draft_equal_those_of_single_steps(target: LlamaTarget) -> None:
    n_draft = min(4, target.capabilities.max_rollback if target.capabilities.max_rollback is not None else 4)
    rows = target.eval([Plan(0, 0, TEXT[:6], chain(TEXT[6 : 6 + n_draft]))])[0].copy()
    assert rows.shape == (1 + n_draft, target.n_vocab)
    target.clear(0)
    for index in range(1 + n_draft):
        pending = TEXT[:6] if index == 0 else [TEXT[5 + index]]
        single = target.eval([Plan(0, target.n_cached(0), pending)])[0]
        assert single.shape == (1, target.n_vocab)
        assert close(rows[index], single[0])


def test_rows_are_views(dense: LlamaTarget) -> None:
    rows = dense.eval([Plan(0, 0, TEXT, chain([1, 2, 3]))])[0]
    assert rows.base is not None
    assert rows.dtype == np.float32
    assert not rows.flags.owndata


def test_sequences_in_one_batch_equal_them_alone(dense: LlamaTarget) -> None:
    texts = [TEXT[:4], TEXT[4:9], TEXT[2:]]
    alone = [straight(dense, text, seq_id) for seq_id, text in enumerate(texts)]
    together = dense.eval([Plan(0, 0, texts[0]), Plan(1, 0, texts[1], rows=False), Plan(2, 0, texts[2])])
    assert [rows.shape[0] for rows in together] == [1, 0, 1]
    assert close(together[0][0], alone[0])
    assert close(together[2][0], alone[2])
    more = dense.eval([Plan(2, len(texts[2]), [9], chain([8])), Plan(1, len(texts[1]), [7])])
    assert close(more[0][1], straight(dense, [*texts[2], 9, 8], 2))
    assert close(more[1][0], straight(dense, [*texts[1], 7], 1))


def test_prefill_without_rows(target: LlamaTarget) -> None:
    assert target.eval([Plan(0, 0, TEXT[:5], rows=False)])[0].shape == (0, target.n_vocab)
    row = target.eval([Plan(0, 5, TEXT[5:])])[0][0].copy()
    assert close(row, straight(target, TEXT))


@pytest.mark.parametrize("n_accepted", [0, 1, 3])
def test_retain_then_eval_equals_a_straight_pass(target: LlamaTarget, n_accepted: int) -> None:
    target.eval([Plan(0, 0, TEXT[:5])])
    target.eval([Plan(0, 5, TEXT[5:6], chain([*TEXT[6 : 6 + n_accepted], 250, 251, 252][:4]))])
    n_cached = keep(target, 5, 1, n_accepted)
    row = target.eval([Plan(0, n_cached, TEXT[n_cached:])])[0][0].copy()
    assert close(row, straight(target, TEXT))


def keep(target: LlamaTarget, n_past: int, n_pending: int, n_accepted: int) -> int:
    """Keep what was accepted of a draft in the way of this memory; the tokens cached then."""
    kept = target.retain(0, n_past + n_pending, tuple(range(n_accepted)))
    assert kept == (target.capabilities.rollback != "replay")
    if not kept:
        assert target.fall_back(0, n_past) == n_past
    assert target.n_cached(0) == (n_past + n_pending + n_accepted if kept else n_past)
    return target.n_cached(0)


def test_many_rounds_with_rejections_equal_a_straight_pass(target: LlamaTarget) -> None:
    rng = np.random.default_rng(3)
    text = [int(token) for token in rng.integers(3, 259, 120)]
    n_cached = done = 0
    while done < len(text):
        n_right = int(rng.integers(0, 4))
        right = text[done + 1 : done + 1 + n_right]
        pending = text[n_cached : done + 1]
        wrong = [255] if len(pending) < 16 else []
        target.eval([Plan(0, n_cached, pending, chain([*right, *wrong]))])
        n_cached = keep(target, n_cached, len(pending), len(right)) if wrong else target.n_cached(0)
        done += 1 + len(right)
    row = target.eval([Plan(0, n_cached, [*text[n_cached:], 7])])[0][0].copy()
    target.clear(0)
    for begin in range(0, len(text), 60):
        target.eval([Plan(0, begin, text[begin : begin + 60], rows=False)])
    assert close(row, target.eval([Plan(0, len(text), [7])])[0][0])


def test_prefix_reuse(dense: LlamaTarget) -> None:
    for token_index, token in enumerate(TEXT):
        dense.eval([Plan(0, token_index, [token])])
    assert dense.retain(0, 4)
    row = dense.eval([Plan(0, 4, [11, 12])])[0][0].copy()
    assert close(row, straight(dense, [*TEXT[:4], 11, 12]))


def test_memory_that_cannot_rewind_says_so(tiny: dict[str, Path]) -> None:
    for kind in ("lfm2", "mamba"):
        with load(tiny[kind], OPTIONS) as target:
            assert not target.capabilities.rewind
            assert target.capabilities.sessions_per_batch == 1
            target.eval([Plan(0, 0, TEXT[:6])])
            target.eval([Plan(0, 6, TEXT[6:8])])
            assert not target.retain(0, 3)
            assert target.n_cached(0) == 8
            assert target.retain(0, 8)
            target.clear(0)
            assert close(target.eval([Plan(0, 0, TEXT)])[0][0].copy(), straight(target, TEXT))


def test_a_state_is_kept_until_the_next_draft_and_only_for_its_own_text(tiny: dict[str, Path]) -> None:
    with load(tiny["mamba"], OPTIONS) as target:
        assert target.capabilities.rollback == "replay"
        for seq_id in (2, 0):  # each sequence has one of its own
            target.eval([Plan(seq_id, 0, TEXT[:4])])
            target.eval([Plan(seq_id, 4, TEXT[4:5], chain([9, 9]))])
        target.eval([Plan(0, 7, [1])])
        assert not target.retain(0, 6)
        assert target.fall_back(0, 6) == target.n_cached(0) == 4
        assert target.fall_back(0, 4) == 4  # again: it is still there
        row = target.eval([Plan(0, 4, TEXT[4:])])[0][0].copy()
        assert target.fall_back(0, 3) == target.n_cached(0) == 0  # another text from here on
        target.eval([Plan(0, 0, TEXT[6:])])
        assert target.fall_back(0, 5) == 0
        assert close(row, straight(target, TEXT))
        assert target.fall_back(2, 4) == 4
        assert close(target.eval([Plan(2, 4, TEXT[4:])])[0][0].copy(), straight(target, TEXT))


def test_a_cancelled_draft_leaves_a_kept_state_as_it_was(tiny: dict[str, Path]) -> None:
    with load(tiny["mamba"], OPTIONS) as target:
        target.eval([Plan(0, 0, TEXT[:5])])
        target._abort._buffer[0] = b"\x01"
        with pytest.raises(EvalCancelled):
            target.eval([Plan(0, 5, TEXT[5:6], chain([1, 2]))])
        target.resume()
        assert target.n_cached(0) == 5
        assert close(target.eval([Plan(0, 5, TEXT[5:])])[0][0].copy(), straight(target, TEXT))


def test_recurrent_memory_without_a_state_aside_forbids_drafts(tiny: dict[str, Path]) -> None:
    with load(tiny["mamba"], replace(OPTIONS, n_rs_seq=0)) as target:
        assert target.capabilities.max_rollback == 0
        assert target.capabilities.rollback is None
        assert target.capabilities.off_reason == "no partial rollback"
        with pytest.raises(EvalError, match="draft"):
            target.eval([Plan(0, 0, [5], chain([6]))])


def test_snapshots_go_back_once_and_only_within_the_last_batch(tiny: dict[str, Path]) -> None:
    with load(tiny["lfm2"], OPTIONS) as target:
        assert target.capabilities.max_rollback == 4
        target.eval([Plan(0, 0, [5])])
        target.eval([Plan(0, 1, [6])])
        assert not target.retain(0, 1)  # two batches of one token: their snapshots are stale
        target.eval([Plan(0, 2, [7], chain([8, 9]))])
        assert target.retain(0, 3, (0,))
        assert not target.retain(0, 3)  # a second time without a pass in between
        with pytest.raises(EvalError, match="draft"):
            target.eval([Plan(0, 4, [1], chain([2] * 5))])


def test_a_window_forgets_and_says_so(tiny: dict[str, Path]) -> None:
    options = TargetOptions(n_ctx=1024, n_rows_max=4, n_batch=64)
    text = [int(token) for token in np.random.default_rng(1).integers(3, 259, 640)]
    with load(tiny["gemma3"], options) as target:
        for begin in range(0, 640, 64):
            target.eval([Plan(0, begin, text[begin : begin + 64], rows=False)])
        assert target.retain(0, 630)
        row = target.eval([Plan(0, 630, [9])])[0][0].copy()
        assert not target.retain(0, 20)
        target.clear(0)
        for begin in range(0, 640, 64):
            part = text[begin : min(begin + 64, 630)]
            target.eval([Plan(0, begin, part, rows=False)])
        assert close(row, target.eval([Plan(0, 630, [9])])[0][0])


def test_full_windows_rewind_anywhere(tiny: dict[str, Path]) -> None:
    text = [int(token) for token in np.random.default_rng(1).integers(3, 259, 384)]
    with load(tiny["gemma3"], TargetOptions(n_ctx=512, n_batch=64, swa_full=True)) as target:
        for begin in range(0, 384, 64):
            target.eval([Plan(0, begin, text[begin : begin + 64], rows=False)])
        assert target.retain(0, 20)
        row = target.eval([Plan(0, 20, [9])])[0][0].copy()
        assert close(row, straight(target, [*text[:20], 9]))


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([], "batch of 0"),
        ([Plan(0, 0, [])], "batch of 0"),
        ([Plan(0, 0, [1] * 65)], "batch of 65"),
        ([Plan(0, 0, [270])], "token id 270"),
        ([Plan(0, 0, [-1])], "token id -1"),
        ([Plan(0, 0, [1, 270])], "token id 270"),
        ([Plan(0, 0, [1, -5])], "token id -5"),
        ([Plan(0, 0, [1, 2**40])], "not a token id"),
        ([Plan(3, 0, [1])], "sequence 3 of 3"),
        ([Plan(-1, 0, [1])], "sequence -1 of 3"),
        ([Plan(0, 4, [1])], "the plan says 4"),
        ([Plan(0, 0, [1], chain([2] * 8))], "rows"),
        ([Plan(0, 0, [1]), Plan(0, 0, [2])], "twice"),
        ([Plan(0, 0, [1], Draft((2, 3), (-1, -1), (0, 0), (1.0, 1.0)))], "branches"),
        ([Plan(0, 0, [1]), Plan(1, 0, [], chain([2]))], "no pending"),
        ([Plan(seq, 0, [1]) for seq in range(4)], "sequence"),
    ],
)
def test_what_would_abort_the_process_is_refused(dense: LlamaTarget, plans: list[Plan], message: str) -> None:
    with pytest.raises(EvalError, match=message):
        dense.eval(plans)
    assert [dense.n_cached(seq) for seq in range(3)] == [0, 0, 0]
    assert dense.eval([Plan(0, 0, TEXT)])[0].shape[0] == 1


def test_the_context_fills_to_its_last_token(tiny: dict[str, Path]) -> None:
    with load(tiny["llama"], TargetOptions(n_ctx=300, n_rows_max=9, n_batch=128)) as target:
        assert target.n_ctx == 300
        for begin in range(0, 290, 58):
            target.eval([Plan(0, begin, [9] * 58, rows=False)])
        with pytest.raises(ContextFullError, match="300"):
            target.eval([Plan(0, 290, [1] * 11)])
        assert target.eval([Plan(0, 290, [1], chain([2] * 8))])[0].shape[0] == 9
        assert target.eval([Plan(0, 299, [4])])[0].shape[0] == 1
        for plan in (Plan(0, 300, [5]), Plan(0, 300, [5, 6])):
            with pytest.raises(ContextFullError):
                target.eval([plan])
        assert target.n_cached(0) == 300


def test_retain_refuses_nonsense(dense: LlamaTarget) -> None:
    dense.eval([Plan(0, 0, TEXT[:4], chain([1, 2]))])
    for n_keep, path in ((7, ()), (4, (1,)), (4, (0, 2)), (3, (0,)), (-1, ()), (4, (0, 1, 2))):
        with pytest.raises(EvalError):
            dense.retain(0, n_keep, path)
    with pytest.raises(EvalError, match="sequence 9"):
        dense.retain(9, 0)
    with pytest.raises(EvalError, match="sequence 9"):
        dense.clear(9)
    assert dense.retain(0, 0)
    assert dense.n_cached(0) == 0


def test_a_raised_flag_cancels_the_next_eval_and_changes_nothing(target: LlamaTarget) -> None:
    target.eval([Plan(0, 0, TEXT[:5])])
    target.abort()
    for _ in range(2):
        with pytest.raises(EvalCancelled):
            target.eval([Plan(0, 5, TEXT[5:])])
    target.resume()
    row = target.eval([Plan(0, 5, TEXT[5:])])[0][0].copy()
    assert close(row, straight(target, TEXT))


def test_cancelling_inside_a_pass_leaves_the_cache_as_it_was(target: LlamaTarget) -> None:
    """The C flag alone is set, as when a signal arrives after the check: the pass ends at its first node."""
    target.eval([Plan(0, 0, TEXT[:5])])
    target._abort._buffer[0] = b"\x01"
    with pytest.raises(EvalCancelled):
        target.eval([Plan(0, 5, TEXT[5:])])
    target.resume()
    if target.capabilities.rewind:
        assert target.n_cached(0) == 5
        row = target.eval([Plan(0, 5, TEXT[5:])])[0][0].copy()
    else:
        with pytest.raises(EvalError, match="clear"):
            target.eval([Plan(0, 5, TEXT[5:])])
        assert not target.retain(0, 0)
        target.clear(0)
        row = target.eval([Plan(0, 0, TEXT)])[0][0].copy()
    assert close(row, straight(target, TEXT))


@pytest.mark.model
def test_abort_from_another_thread_in_mid_prefill(default_model: Path) -> None:
    with load(default_model, TargetOptions(n_ctx=1024)) as target:
        text = target.encode("Once upon a time there was a fox. " * 60)[:500]
        target.eval([Plan(0, 0, text[:20], NO_DRAFT)])
        timer = threading.Timer(0.1, target.abort)
        timer.start()
        began_s = time.perf_counter()
        with pytest.raises(EvalCancelled):
            target.eval([Plan(0, 20, text[20:])])
        assert time.perf_counter() - began_s < 5
        timer.join()
        target.resume()
        row = target.eval([Plan(0, 20, text[20:60])])[0][0].copy()
        assert int(row.argmax()) == int(straight(target, text[:60]).argmax())


@pytest.mark.model
def test_the_default_model_writes_sense(default_model: Path) -> None:
    with load(default_model, TargetOptions(n_ctx=512)) as target:
        assert target.capabilities.max_rollback is None
        assert not target.notes
        tokens = target.encode("The capital of France is", bos=True)
        row = target.eval([Plan(0, 0, tokens)])[0][0]
        assert target.piece(int(row.argmax())) == b" Paris"
