"""Drafted text equals plain text equals naive text, whatever the drafter does; and the comparison can fail."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgespec


@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**64))
def test_drafted_text_is_plain_text_is_naive_text(seed: int) -> None:
    harness.compare(harness.random_case(random.Random(seed)))


MUTATIONS = (
    ("core/verify.py", "if child is None:", "if child is None and len(tokens) > len(draft.tokens):"),
    ("core/verify.py", "rows[node + 1]", "rows[node]"),
    ("core/verify.py", "position + len(tokens))", "position)"),
    ("core/verify.py", "        sampler.accept(token)\n", ""),
    ("core/verify.py", "logprobs_of(row, token", "logprobs_of(rows[0], token"),
    ("core/penalties.py", "text if n_last < 0 else text[-n_last:]", "text"),
    ("core/penalties.py", "        if 0 <= self._p.penalty_last_n < len(self._window):", "        if False:"),
    ("core/generation.py", "logprobs = verdict.logprobs[:n]", "logprobs = verdict.logprobs"),
    ("core/session.py", "if self.target.retain(self.seq_id, self.n_kv, path[:n_kept])", "if True"),
    ("core/session.py", "path[:n_kept]):", "path):"),
    ("core/session.py", "len(tokens) - 1)", "len(tokens))"),
    ("core/session.py", "        self._rewind(n_same)\n", "        self.n_kv = n_same\n"),
    ("core/session.py", "if old != new:", "if False:"),
    ("core/session.py", "self.n_kv = self.target.fall_back(self.seq_id, n_keep)", "self.n_kv = 0"),
    ("core/session.py", "self.n_kv = self.target.fall_back(self.seq_id, plan.n_past)", "self.n_kv = plan.n_past"),
    ("core/session.py", "prompt[:-1]", "prompt"),
    ("core/stream.py", "self._held = text[len(text) - n_hold :]", 'self._held = ""'),
    ("core/stream.py", "return text[: min(found)]", "return text"),
    ("core/stream.py", 'self._decoder.decode(b"", True)', '""'),
    (
        "core/stream.py",
        "range(min(len(text), len(stop) - 1), 0, -1)",
        "range(min(len(text), len(stop) - 1) - 1, 0, -1)",
    ),
    ("core/generation.py", "tokens = verdict.tokens[:n]", "tokens = verdict.tokens"),
    ("core/generation.py", "self.session.n_ctx - len(self.session.tokens)", "self.limits.max_draft"),
    (
        "core/generation.py",
        "if token in self._eog:\n                self._finish",
        "if False:\n                self._finish",
    ),
    ("core/drafting.py", "return cut(draft, min(valid, limit))", "return cut(draft, valid)"),
    ("core/drafting.py", "0 <= token < n_vocab", "token < n_vocab"),
)
"""Deliberate bugs: file, what stands there, what is put instead. Each must make the comparison fail."""


@pytest.mark.parametrize(("file", "old", "new"), MUTATIONS, ids=range(len(MUTATIONS)))
def test_a_deliberate_bug_is_caught(file: str, old: str, new: str, tmp_path: Path) -> None:
    package = tmp_path / "edgespec"
    shutil.copytree(Path(edgespec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(harness.__file__, tmp_path)
    source = (package / file).read_text("utf-8")
    assert source.count(old) == 1, "the mutation no longer applies: bring the list up to date"
    (package / file).write_text(source.replace(old, new), "utf-8")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import edgespec, harness; "
        "assert edgespec.__file__.startswith(sys.path[0]); print('ready', flush=True); harness.check(400)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert "ready" in done.stdout, done.stderr
    assert done.returncode != 0, "the bug went unnoticed"
