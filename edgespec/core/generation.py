"""One answer in the making: what a session still wants, what it drafts, and what it has said.

Does not talk to the target; the round does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.core.asking import Asking
from edgespec.core.constraint import Guide
from edgespec.core.controller import Controller, chain, cut, exact_length
from edgespec.core.drafting import Drafting
from edgespec.core.offers import HiddenTarget
from edgespec.core.sampling import Sampler
from edgespec.core.session import Session
from edgespec.core.stats import Stats
from edgespec.core.stream import TextStream
from edgespec.core.trace import RoundTrace
from edgespec.core.verify import verify
from edgespec.errors import ConstraintError, EvalError
from edgespec.interfaces import (
    NO_DRAFT,
    Chunk,
    Draft,
    FinishReason,
    Limits,
    Plan,
    Result,
    Rows,
    Sampling,
    TokenLogprobs,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a round's pass began and ended (seconds), and the rows the other sessions had in it."""

    began_s: float
    ended_s: float
    n_other_rows: int

    @property
    def verify_s(self) -> float:
        """Seconds of the pass."""
        return self.ended_s - self.began_s


class Generation:
    """The state of one answer. `finish_reason` is None while it goes on."""

    def __init__(
        self,
        session: Session,
        prompt: Sequence[int],
        sampling: Sampling,
        limits: Limits,
        piece: Callable[[int], bytes],
        clock: Callable[[], float],
        drafting: Drafting | None = None,
        controller: Controller | None = None,
        guide: Guide | None = None,
        forced: Drafting | None = None,
        others: Sequence[Drafting] = (),
    ) -> None:
        """Without `drafting` the answer is decoded plainly; without `controller` drafts are taken as they come.

        `guide` constrains the text; `forced` drafts what it leaves no choice about, beside `drafting`; `others` are
        asked in turn where `drafting` proposes nothing.

        Raises:
            ContextFullError: the prompt does not fit.
        """
        self.stats = Stats(started_s=clock())
        self.n_cached = session.load(prompt)
        self.session = session
        self.limits = limits
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.drafting = drafting
        self.controller = controller
        self._off_reason = "drafting was not asked for" if drafting is None else None
        if session.target.capabilities.max_rollback == 0 and drafting is not None:
            self._off_reason = session.target.capabilities.off_reason or "no partial rollback"
            self.drafting = None
        self.trace: list[RoundTrace] | None = None
        """Takes up the rounds of decoding from now on where it is a list."""
        if self.drafting is not None:
            self.drafting.draw_as(sampling)
        self._n_prompt = len(prompt)
        self._clock = clock
        self._guide = guide
        self._forced = forced
        self._others = tuple(others)
        drafters = [*([drafting] if drafting is not None else []), *others]
        self._shown = session.target if isinstance(session.target, HiddenTarget) and session.target.n_hidden else None
        self._observers = [each for each in drafters if self._shown is not None and each.observing is not None]
        self._accounts = [each.asking for each in drafters if each.asking is not None]
        self._asked: list[Asking] = []
        self._sampler = Sampler(sampling, prompt, guide)
        self._stream = TextStream(piece, limits.stop)
        self._text: list[str] = []
        self._proposals: list[tuple[str, Draft]] = []
        self._draft_s = 0.0
        self._eog = frozenset() if limits.ignore_eog else session.target.eog
        if limits.max_tokens is not None and limits.max_tokens <= 0:
            self._finish("length")

    @property
    def prefilling(self) -> bool:
        """Whether the next pass is over the prompt (or over a text whose cache was lost)."""
        return not self.tokens or self.session.n_pending > 1 + self.session.n_replay

    def plan(self, n_chunk: int, n_draft_max: int, n_other_rows: int) -> Plan:
        """What to put into the next batch: a chunk of the prompt, or the pending tokens and a draft.

        Args:
            n_chunk: most tokens of the prompt at a time.
            n_draft_max: most drafted tokens the batch has room for.
            n_other_rows: rows of the other sessions in the batch.
        """
        self._proposals, self._draft_s = [], 0.0
        if self.prefilling:
            return self.session.plan(n_chunk=n_chunk)
        if self.drafting is None:
            return self.session.plan()
        began_s = self._clock()
        room = min(self._room(), n_draft_max - self.session.n_replay)
        draft = self._draft(self.drafting, room, n_other_rows)
        self._draft_s = self._clock() - began_s
        return self.session.plan(draft, hidden=bool(self._observers))

    def absorb(self, plan: Plan, rows: Rows, timing: Timing) -> Chunk:
        """Take in what the pass returned for `plan`; give what may be shown of it.

        Raises:
            ConstraintError: no token of the vocabulary can go on as the constraint wants.
        """
        prefilling = self.prefilling
        if prefilling:
            self.stats.prefill(timing.verify_s)
        if not plan.rows:
            self.session.commit(plan)
            return Chunk("", (), 0)
        position = plan.n_past + len(plan.pending)
        try:
            verdict = verify(rows, plan.draft, self._sampler, position)
        except ConstraintError:
            self.session.forget()  # what the pass left in the cache is no part of the text
            raise
        text, n = self._say(verdict.tokens)
        tokens = verdict.tokens[:n]
        began_s = self._clock()
        self.session.commit(plan, tokens, verdict.path)
        if plan.hidden:
            self._show(plan, verdict.path[n - 2] + 1 if n > 1 else 0)
        undo_s = self._clock() - began_s if self.session.n_replay else 0.0
        self.tokens.extend(tokens)
        logprobs = verdict.logprobs[:n]
        self.logprobs.extend(logprobs)
        n_accepted = min(n, len(verdict.path))
        if not prefilling:
            self._account(plan, tokens, n_accepted, timing, undo_s)
        self._conclude()
        self.stats.committed(n, self._clock())
        return Chunk(text + self._flush(), tokens, n_accepted, logprobs, len(plan.draft.tokens))

    def cancel(self) -> str:
        """End here, keeping what was said; return text that was held back."""
        if self.finish_reason is None:
            self._finish("cancelled")
        return self._flush()

    def result(self) -> Result:
        """The finished answer. The report lacks what only the engine knows."""
        off = self._off_reason or (self.drafting.off_reason if self.drafting else None)
        used = self.drafting is not None and off is None
        gone = [each.off_reason for each in self._others if each.off_reason is not None]
        beside = [each for each in self._others if each.off_reason is None]
        names = [drafting.name for drafting in (self.drafting, *beside, self._forced) if drafting and used]
        notes = tuple(self.drafting.notes) if self.drafting else ()
        report = self.stats.report(
            "+".join(names) or "none",
            off,
            (*notes, *gone),
            self.session.target.capabilities.rollback,
        )
        usage = Usage(self._n_prompt, len(self.tokens), self.n_cached)
        reason = self.finish_reason or "cancelled"
        return Result("".join(self._text), tuple(self.tokens), reason, usage, report, tuple(self.logprobs))

    def _room(self) -> int:
        """Most tokens a draft may have: the one place where context, limits and memory are minded."""
        room = min(self.limits.max_draft, self.session.n_ctx - len(self.session.tokens))
        if self.limits.max_tokens is not None:
            room = min(room, self.limits.max_tokens - len(self.tokens) - 1)
        can = self.session.target.capabilities
        n_tokens = len(self.session.tokens)
        if can.exact_n_ctx is not None and can.exact_at(n_tokens) is not None:
            room = min(room, can.exact_n_ctx - n_tokens)
        return room if can.max_rollback is None else min(room, can.max_rollback)

    def _draft(self, drafting: Drafting, limit: int, n_other_rows: int) -> Draft:
        if self.limits.fixed_draft is not None:
            limit = min(limit, self.limits.fixed_draft)
        asks = self.controller is None or self.controller.asks()
        self._asked.clear()
        proposal = self._ask(drafting, limit) if asks else NO_DRAFT
        for other in self._others if asks else ():
            if proposal.tokens:
                break
            drafting, proposal = other, self._ask(other, limit)
        if self._guide is not None:
            drafting, proposal = self._constrained(self._guide, drafting, proposal, limit)
        if not asks and not proposal.tokens:
            return NO_DRAFT
        if not self.session.target.capabilities.tree or self.session.target.capabilities.exact_widths is not None:
            proposal = chain(proposal)
        if not self._eog.isdisjoint(proposal.tokens):  # what follows the end is never wanted
            end = next(i for i, token in enumerate(proposal.tokens) if token in self._eog)
            proposal = cut(proposal, end + 1)
        self._proposals.append((drafting.name, proposal))
        exact = self.session.target.capabilities.exact_at(len(self.session.tokens))
        if self.controller is None:
            n_always = 1 + self.session.n_replay + n_other_rows
            return cut(proposal, exact_length(len(proposal.tokens), n_always, exact))
        return self.controller.trim(
            drafting.name,
            chain(proposal),
            len(self.session.tokens),
            n_other_rows,
            n_replay=self.session.n_replay,
            replays=self.session.target.capabilities.rollback == "replay",
            exact=exact,
            behind=drafting in self._others,
        )

    def _ask(self, drafting: Drafting, limit: int) -> Draft:
        """What a drafter proposes, if asking it is worth the time."""
        asking = drafting.asking
        if asking is None or self.controller is None:
            return drafting.propose(self.session.tokens, limit)
        if not asking.worth(self.controller.cost.seconds(1, len(self.session.tokens))):
            return NO_DRAFT
        began_s = self._clock()
        proposal = drafting.propose(self.session.tokens, limit)
        asking.called(self._clock() - began_s)
        self._asked.append(asking)
        return proposal

    def _show(self, plan: Plan, row: int) -> None:
        """Hand the state behind a row of the pass to who reads it."""
        try:
            state = self._shown.hidden(plan.seq_id, row) if self._shown is not None else None
        except EvalError as error:  # the text does not need it
            for drafting in self._observers:
                drafting.stop(f"{drafting.name} has nothing to read: {error}")
            self._observers = []
            return
        if state is not None:
            for drafting in self._observers:
                drafting.observe(self.session.tokens, state)

    def _constrained(self, guide: Guide, drafting: Drafting, proposal: Draft, limit: int) -> tuple[Drafting, Draft]:
        """What the drafter proposed as far as it is allowed, or what is forced, whichever promises more."""
        proposal = chain(proposal)
        proposal = cut(proposal, guide.n_allowed(proposal.tokens))
        forced = self._forced.propose(self.session.tokens, limit) if self._forced is not None else NO_DRAFT
        if self._forced is None or not forced.tokens:
            return drafting, proposal
        if proposal.tokens and self.controller is not None:
            rates = self.controller.acceptance
            if rates.promise(drafting.name, proposal) > rates.promise(self._forced.name, forced):
                self._proposals.append((self._forced.name, forced))
                return drafting, proposal
            self._proposals.append((drafting.name, proposal))
        return self._forced, forced

    def _say(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Text of `tokens` and how many of them count, the one that ends the answer included."""
        text: list[str] = []
        for n, token in enumerate(tokens, 1):
            if token in self._eog:
                self._finish("stop")
            else:
                text.append(self._stream.push(token))
                if self._stream.stopped:
                    self._finish("stop")
            if self.finish_reason is not None:
                self._text.extend(text)
                return "".join(text), n
        self._text.extend(text)
        return "".join(text), len(tokens)

    def _conclude(self) -> None:
        if self.finish_reason is None and (
            self.session.full or (self.limits.max_tokens is not None and len(self.tokens) >= self.limits.max_tokens)
        ):
            self._finish("length")
        if self.drafting is not None and self.session.n_pending > 1 + self.session.n_replay:
            self._off_reason = "no partial rollback: the model's memory refused to take back rejected tokens"
            self.drafting = None

    def _account(self, plan: Plan, tokens: tuple[int, ...], n_accepted: int, timing: Timing, undo_s: float) -> None:
        self.stats.decode_round(plan.n_rows, n_accepted, len(tokens), self._draft_s, timing.verify_s)
        if self.trace is not None:
            self.trace.append(self._traced(plan, tokens, n_accepted, timing))
        if self.controller is None or self.drafting is None:
            return
        for name, proposal in self._proposals:
            self.controller.acceptance.score(name, proposal, tuple(tokens))
        saved_s = self.controller.book(
            plan.n_tokens, plan.n_past, len(tokens), timing.verify_s, self._draft_s + undo_s, timing.n_other_rows
        )
        self.stats.saved_s = (self.stats.saved_s or 0.0) + saved_s
        for account in self._accounts:
            step_s = self.controller.cost.seconds(1, plan.n_past)
            account.book(len(tokens), saved_s, step_s, asked=account in self._asked)

    def _traced(self, plan: Plan, tokens: tuple[int, ...], n_accepted: int, timing: Timing) -> RoundTrace:
        drafter, proposal = self._proposals[-1] if self._proposals else (None, NO_DRAFT)
        others = tuple(self._proposals[:-1])
        return RoundTrace(
            len(self.session.tokens) - len(tokens), tokens, drafter, proposal, others, len(plan.draft.tokens),
            n_accepted, plan.n_past, len(plan.pending), plan.n_rows + timing.n_other_rows, self._draft_s,
            timing.began_s, timing.verify_s,
        )  # fmt: skip

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason

    def _flush(self) -> str:
        if self.finish_reason is None:
            return ""
        rest = self._stream.finish()
        self._text.append(rest)
        return rest
