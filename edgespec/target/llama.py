"""The target: a GGUF model behind the contract of `interfaces.Target` and `interfaces.Tokenizer`.

Knows llama.cpp's cache and batches. Knows nothing of drafters, sampling, or conversations.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from edgespec.conditions import Team
from edgespec.core.offers import Hidden
from edgespec.errors import ContextFullError, EvalCancelled, EvalError, ModelError
from edgespec.interfaces import Capabilities, Plan, Row, Rows
from edgespec.target import lib, memory
from edgespec.target.batch import Batch
from edgespec.target.gguf_check import GGUFInfo, check
from edgespec.target.grammar import Grammars, LlamaGuide
from edgespec.target.hidden import HiddenStates
from edgespec.target.logits import Logits
from edgespec.target.opening import Handles
from edgespec.target.options import TargetOptions
from edgespec.target.threads import largest
from edgespec.target.vocab import Vocab

_NO_SLOT = 1
_ABORTED = 2


def load(path: str | os.PathLike[str], options: TargetOptions, info: GGUFInfo | None = None) -> LlamaTarget:
    """Load a GGUF model and make it ready to evaluate. `info` is what `gguf_check.check` said, where already known.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: not a model, damaged, or of a kind llama.cpp cannot run.
        ModelMemoryError: it does not fit the memory.
        DeviceError: llama.cpp's library does not load.
    """
    return LlamaTarget(info or check(path), options)


class LlamaTarget:
    """One model, one context, `n_seq_max` sequences in one unified cache.

    Usable from several threads, which take turns; `abort` alone does not wait. A context manager.
    """

    def __init__(self, info: GGUFInfo, options: TargetOptions) -> None:
        options = replace(options, n_rows_max=max(options.n_rows_max, options.n_seq_max))
        self._handles = Handles(info.path, options)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.options = options
        self.notes: list[str] = list(self._handles.notes)
        try:
            self._set_up(info)
        except BaseException:
            self._handles.free()
            raise

    def _set_up(self, info: GGUFInfo) -> None:
        native = lib.native()
        handles, options = self._handles, self.options
        self._ctx = handles.ctx
        self._abort = handles.abort
        self._vocab = Vocab(handles.model)
        self._grammars: Grammars | None = None
        self._bind()
        self.n_vocab = self._vocab.n_tokens
        self.n_ctx = min(options.n_ctx, int(native.llama_n_ctx(self._ctx)))
        self.n_batch = min(options.n_batch, int(native.llama_n_batch(self._ctx)))
        self.n_rows_max = options.n_rows_max
        self.n_ctx_train = int(native.llama_model_n_ctx_train(handles.model))
        self.eog = self._vocab.eog
        self.info = info
        self.name = info.name
        self.architecture = info.arch
        self.fingerprint = info.fingerprint
        self._batch = Batch(self.n_batch, self.n_vocab)
        self._logits = Logits(self._ctx, self.n_rows_max, self.n_vocab)
        self._n_cached = [0] * options.n_seq_max
        self._draft_start = [0] * options.n_seq_max
        self._last_start = [0] * options.n_seq_max
        self._stamp = [0] * options.n_seq_max
        self._n_evals = 0
        self._lost: set[int] = set()
        self._asides = memory.Asides(self._ctx, options.n_seq_max)
        self.capabilities = self._probe()
        self._states = HiddenStates(handles.ctx, handles.model)
        # A recurrent memory splits batches of nothing but outputs in another way than its own.
        self.n_hidden = self._states.n if self.capabilities.rollback == "removal" else 0

    def _bind(self) -> None:
        native = lib.native()
        self._memory = ctypes.c_void_p(native.llama_get_memory(self._ctx))
        self._ctx_pointer = ctypes.c_void_p(self._ctx)
        self._decode = lib.symbol("llama_decode", ctypes.c_int32, (ctypes.c_void_p, native.llama_batch))
        self._remove = lib.symbol(
            "llama_memory_seq_rm", ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
        )

    def _probe(self) -> Capabilities:
        options = self.options
        # One thread: a team stalls at every barrier while another program runs, and these passes are tiny.
        self._set_threads(1, 1)
        self._rules, held = memory.probe(
            self._ctx,
            self._handles.model,
            self._decode_plainly,
            self.n_vocab,
            swa_full=options.swa_full,
            compare=options.self_check,
            asides=self._asides,
        )
        self._set_threads(options.n_threads, options.n_threads_batch or options.n_threads)
        found = self._rules.capabilities(options.n_seq_max)
        if held:
            return found
        self.notes.append("the cache did not give back tokens as asked: drafting and prefix reuse are off")
        self._rules = replace(self._rules, kind="recurrent", n_rs_seq=0)
        self._asides.usable = False
        return replace(self._rules.capabilities(options.n_seq_max), off_reason="rollback check failed")

    def _set_threads(self, one: int, wide: int) -> None:
        lib.native().llama_set_n_threads(self._ctx, one, wide)

    def _decode_plainly(self, tokens: list[int], n_past: int) -> Row:
        """One pass over sequence 0 outside the bookkeeping; a copy of the last row."""
        first = self._batch.fill([Plan(0, n_past, tokens)], [n_past], self.n_ctx + 8, self.n_rows_max)
        code = self._decode(self._ctx_pointer, self._batch.struct)
        if code != 0:
            raise ModelError(f"{self.name}: llama.cpp cannot run a first pass (code {code}): choose another model")
        row: Row = self._logits.view(first[0], first[0], 1)[0].copy()
        return row

    # --- Target ---

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """Run one batch; per plan `(plan.n_rows, n_vocab)` float32 rows, views valid until the next `eval`.

        Raises:
            EvalCancelled: the abort flag was raised; nothing of this batch stays in the cache.
            ContextFullError: the batch does not fit the cache, which is unchanged.
            EvalError: the batch was refused; nothing of it stays in the cache. On memory without rollback a pass that
                failed half-way costs the sequence: it must then be cleared.
            ModelError: the target is closed, or this process was forked after loading.
        """
        self._check_alive()
        with self._lock:
            self._check_alive()
            can = self.capabilities
            if len(plans) > can.sessions_per_batch or can.max_rollback is not None or self._lost:
                self._check_plans(plans)
            first_rows = self._batch.fill(plans, self._n_cached, self.n_ctx, self.n_rows_max)
            if self._abort:
                raise EvalCancelled("the pass was cancelled before it began")
            if self._asides.usable and plans[0].draft.tokens:  # such memory takes one sequence a batch
                self._asides.keep(plans[0].seq_id, plans[0].n_past)
            if plans[0].hidden or self._states.shown or len(plans) > 1:
                self._states.prepare(plans, first_rows)
            code = self._decode(self._ctx_pointer, self._batch.struct)
            if code != 0:
                raise self._undo(code, plans)
            self._book(plans)
            return self._logits.of(plans, first_rows)

    def _check_plans(self, plans: Sequence[Plan]) -> None:
        limit, most = self.capabilities.sessions_per_batch, self.capabilities.max_rollback
        if len(plans) > limit:
            raise EvalError(f"{len(plans)} sequences in one batch, this model's memory takes {limit}: send them singly")
        for plan in plans:
            if plan.seq_id in self._lost:
                raise EvalError(f"sequence {plan.seq_id} was lost in a pass that failed: clear it and send it again")
            if most is not None and len(plan.draft.tokens) > most:
                raise EvalError(f"a draft of {len(plan.draft.tokens)} tokens, {most} can be taken back: draft less")

    def _book(self, plans: Sequence[Plan]) -> None:
        self._n_evals += 1
        for plan in plans:
            seq_id = plan.seq_id
            middle = plan.n_past + len(plan.pending)
            self._last_start[seq_id] = plan.n_past
            self._draft_start[seq_id] = middle
            self._n_cached[seq_id] = middle + len(plan.draft.tokens)
            self._stamp[seq_id] = self._n_evals

    def _undo(self, code: int, plans: Sequence[Plan]) -> EvalError | ContextFullError:
        """Take what a failed pass left out of the cache; the error to raise."""
        if code == _NO_SLOT:
            return ContextFullError(f"no room in the context of {self.n_ctx}: shorten the prompt or raise n_ctx")
        self._n_evals += 1
        for plan in plans:
            seq_id = plan.seq_id
            if 0 < plan.n_past == self._asides.n_kept(seq_id):
                self._asides.fall_back(seq_id, plan.n_past)
                continue
            keep = plan.n_past if plan.n_past > 0 else -1
            whole = self._rules.kind in ("dense", "sliding") or keep < 0
            if not whole or not self._remove(self._memory, seq_id, keep, -1):
                self._fall_back(seq_id, 0)
                self._lost.add(seq_id)
        if code == _ABORTED:
            return EvalCancelled("the pass was cancelled")
        return EvalError(f"llama.cpp refused a batch (code {code}): try a smaller context or batch")

    def hidden(self, seq_id: int, row: int) -> Hidden | None:
        """See `core.offers.HiddenTarget.hidden`."""
        self._check_alive()
        return self._states.of(seq_id, row)

    def retain(self, seq_id: int, n_keep: int, path: Sequence[int] = ()) -> bool:
        """Keep the first `n_keep` cached tokens and the first `len(path)` tokens of the last draft, a chain.

        Returns False where the memory cannot drop the rest; the sequence must then `fall_back` or be cleared.

        Raises:
            EvalError: more is to be kept than is cached, or `path` is not a chain from the draft's root.
        """
        self._check_alive()
        with self._lock:
            self._check_alive()
            self._check_seq(seq_id)
            n_cached, keep = self._n_cached[seq_id], n_keep + len(path)
            if seq_id in self._lost:
                return False
            if path and (n_keep != self._draft_start[seq_id] or tuple(path) != tuple(range(len(path)))):
                raise EvalError("the path is not a chain from the root of the last draft")
            if not 0 <= keep <= n_cached:
                raise EvalError(f"sequence {seq_id} holds {n_cached} tokens, {keep} were to be kept")
            if keep == n_cached:
                return True
            if keep == 0:
                return self._fall_back(seq_id, 0) == 0
            if not self._may_drop(seq_id, keep) or not self._remove(self._memory, seq_id, keep, -1):
                return False
            self._n_cached[seq_id] = keep
            self._stamp[seq_id] = -1
            return True

    def _may_drop(self, seq_id: int, keep: int) -> bool:
        if self._rules.kind == "dense":
            return True
        return self._rules.allows(
            n_cached=self._n_cached[seq_id],
            keep=keep,
            last_start=self._last_start[seq_id],
            fresh=self._stamp[seq_id] == self._n_evals,
            pos_min=int(lib.native().llama_memory_seq_pos_min(self._memory, seq_id)),
        )

    def clear(self, seq_id: int) -> None:
        """Empty one sequence's cache."""
        self.fall_back(seq_id, 0)

    def fall_back(self, seq_id: int, n_keep: int) -> int:
        """Return to the state of before the last draft if it had `n_keep` tokens at most, else to none; its length."""
        self._check_alive()
        with self._lock:
            self._check_alive()
            self._check_seq(seq_id)
            return self._fall_back(seq_id, n_keep)

    def _fall_back(self, seq_id: int, n_keep: int) -> int:
        self._n_cached[seq_id] = self._asides.fall_back(seq_id, n_keep)
        self._stamp[seq_id] = -1
        self._lost.discard(seq_id)
        return self._n_cached[seq_id]

    def abort(self) -> None:
        """Make the running (or the next) `eval` raise EvalCancelled, until `resume`. From any thread or handler."""
        self._abort.up()

    def resume(self) -> None:
        """Lower the abort flag."""
        self._abort.down()

    # --- Tokenizer ---

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`; see `Vocab.encode`."""
        self._check_alive()
        return self._vocab.encode(text, special=special, bos=bos)

    def piece(self, token: int) -> bytes:
        """Bytes of one token as shown to a reader; control tokens give b''."""
        self._check_alive()
        return self._vocab.piece(token)

    def guide(self, grammar: str) -> LlamaGuide:
        """A new guide by a grammar in GBNF whose first rule is `root`.

        Raises:
            ConstraintError: the grammar is not valid.
        """
        self._check_alive()
        if self._grammars is None:
            self._grammars = Grammars(self._vocab)
        return self._grammars.guide(grammar)

    # --- what the model is, and how it runs ---

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF's metadata as text; None where it is absent or an array."""
        self._check_alive()
        return self._vocab.metadata(key)

    @property
    def n_threads(self) -> int:
        """Threads of a pass of one token."""
        self._check_alive()
        return int(lib.native().llama_n_threads(self._ctx))

    @property
    def n_threads_batch(self) -> int:
        """Threads of a wider pass."""
        self._check_alive()
        return int(lib.native().llama_n_threads_batch(self._ctx))

    def use_team(self, team: Team) -> str | None:
        """Change threads and their cores from the next pass on; why the cores could not be set, if so.

        Call it on the thread that decodes: teams and masks belong to it.

        Raises:
            ModelError: fewer than one thread was asked for.
        """
        self._check_alive()
        if team.one < 1 or team.wide < 1:
            raise ModelError(f"{team.one} and {team.wide} threads were asked for: at least one each is needed")
        with self._lock:
            self._check_alive()
            pools = self._handles.pools
            # Never fewer threads in the pool than in a pass, not even for a moment: ggml would read past its end.
            reason = pools.attach(max(largest(team), pools.n_threads), team.cpus, team.cpus_wide)
            self._set_threads(team.one, team.wide)
            return reason

    def n_cached(self, seq_id: int) -> int:
        """Tokens of a sequence in the cache."""
        self._check_seq(seq_id)
        return self._n_cached[seq_id]

    @property
    def vocab(self) -> Vocab:
        """The tokenizer with what templates need: start and end tokens and how they are written."""
        self._check_alive()
        return self._vocab

    def close(self) -> None:
        """Free model and context, after the pass in progress; rows given out become invalid. May be called twice."""
        if os.getpid() != self._pid:
            return
        self._abort.up()
        with self._lock:
            self._logits.forget()
            self._handles.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise ModelError("the process was forked after the model was loaded: load the model in the child")
        if not self._handles.alive:
            raise ModelError("the model is closed: load it again")

    def _check_seq(self, seq_id: int) -> None:
        if not 0 <= seq_id < len(self._n_cached):
            raise EvalError(f"sequence {seq_id} of {len(self._n_cached)}: open the target with a larger n_seq_max")
