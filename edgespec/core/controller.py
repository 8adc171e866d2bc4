"""How many of the proposed tokens are worth verifying, zero included, and what drafting has cost so far.

The objective is tokens per second: expected tokens over the expected time of the pass. A ledger in units of plain
decode steps bounds what a wrong guess may cost, whatever a drafter does. Pure: times are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.acceptance import Acceptance
from edgespec.core.cost import CostModel
from edgespec.interfaces import NO_DRAFT, Draft

_MARGIN = 1.02
"""A draft must promise this much more than plain decoding; less is within the error of the estimates."""
_CERTAIN = 0.8
"""The pessimistic outcome: as many accepted tokens as come with this probability."""
_HOPELESS = 0.1
"""A token that is reached less often than this is not worth pricing."""
_FADE = 0.2
_LATE, _DEAR = 1.6, 4.0
"""Times the expected seconds that a pass counts for at most: the first that takes longer, and one right after such."""
_DOUBT = 0.02
"""Share by which drafted rounds are booked dearer than they seem, at least: the price of a plain step is not known
better, and worse where what passes take varies."""
_PATIENCE = 8
"""Rounds without a draft worth pricing before the drafter is asked less often."""
_STALE_AFTER, _DOUBTED_AFTER = 63, 7
"""Drafted rounds after which two plain ones in a row re-measure what plain decoding costs: at the latest, and at the
soonest where drafting seems to win little, so that little is lost by plain rounds and a wrong price may hide a loss."""
_FORGONE = 0.01
"""Share of the time that may be lost to such plain rounds."""


@dataclass(slots=True)
class Ledger:
    """Net gain in plain decode steps: what rounds cost against what their tokens would have cost undrafted.

    Over any 128 tokens a drafter that never earned anything loses at most `opening + floor + 0.6 %` = 2.5 %, and over N
    tokens 0.6 % + 2.4 / N. One that first earned may lose again what it earned lately, up to `cap`.
    """

    balance: float = 0.4
    """The opening credit."""
    cap: float = 7.0
    """Most credit at a time: what the widest pass can cost."""
    lasting: float = 3.0
    """Credit above this fades by a fifth each round, so that an early win cannot fund a later loss."""
    floor: float = 2.0
    """How far below zero a single round may take the balance at the very worst."""
    allowance: float = 0.006
    """Share of all steps that may be lost for good: credit that comes back by itself."""

    def book(self, cost: float, n_tokens: int) -> None:
        """A round cost `cost` plain steps and made `n_tokens`."""
        if self.balance > self.lasting:
            self.balance -= _FADE * (self.balance - self.lasting)
        self.balance = min(self.cap, self.balance + n_tokens - cost * (1.0 - self.allowance))

    def affords(self, loss: float, worst_loss: float) -> bool:
        """Whether a round may end `loss` steps behind plain decoding by a cautious guess, `worst_loss` at worst.

        One that gains by a cautious guess is the way out of debt, and only its worst case counts.
        """
        return loss <= max(0.0, self.balance) and worst_loss <= self.balance + self.floor


class Controller:
    """Chooses the draft length of one session, round by round."""

    def __init__(self, cost: CostModel, acceptance: Acceptance, ledger: Ledger | None = None) -> None:
        """`cost` is shared by all sessions on a target, `acceptance` and `ledger` belong to this one."""
        self.cost = cost
        self.acceptance = acceptance
        self.ledger = Ledger() if ledger is None else ledger
        self._since_plain = 0
        self._since_measured = 0
        self._spent = self._won = 0.0
        self._n_hopeless = 0
        self._late = False
        self._n_together = 1

    def asks(self) -> bool:
        """Whether the drafter is worth asking this round.

        After a stretch in which nothing was worth verifying it is asked every other round: Python's caches are cold
        after each pass, so that asking costs 1 % of a small model's step, and a copy is noticed a token later at most.
        """
        if self._n_hopeless < _PATIENCE or self._n_hopeless % 2 == 0:
            return True
        self._n_hopeless += 1
        return False

    def trim(
        self,
        drafter: str,
        proposal: Draft,
        n_ctx: int,
        n_other_rows: int = 0,
        draft_s: float = 0.0,
        *,
        n_replay: int = 0,
        replays: bool = False,
        exact: frozenset[int] | None = None,
        behind: bool = False,
    ) -> Draft:
        """The part of a proposal to verify: the prefix that promises the most tokens per second, or nothing.

        Args:
            drafter: whose experience applies.
            proposal: a chain.
            n_ctx: cached tokens of this session.
            n_other_rows: rows that other sessions put into the same pass, one each while nothing more is known.
            draft_s: seconds the drafter needs for such a draft, 0 where hidden.
            n_replay: accepted tokens that this pass has to evaluate a second time, draft or not.
            replays: whether a rejected token makes the next pass evaluate this one's accepted tokens again.
            exact: widths of a batch to choose among; None: any.
            behind: whether another drafter goes before this one; what is risked then leaves that one a token to go on
                with, since a wrong guess may take all credit of an answer.
        """
        self._n_hopeless += 1
        # A longer pass holds up every session in it: what a draft gains for one is set against the time of all.
        self._n_together = together = 1 + n_other_rows
        if not proposal.tokens or self._stale:
            return NO_DRAFT
        reaches: list[float] = []
        reach = 1.0
        for rate in self.acceptance.rates(drafter, proposal):
            reach *= rate
            if reach < _HOPELESS:
                break
            reaches.append(reach)
        n_always = 1 + n_replay + n_other_rows
        plain_s = self.cost.seconds(n_always, n_ctx)
        step_s = self.cost.seconds(1 + n_other_rows, n_ctx) if n_replay else plain_s
        # Unless the round before drafted too, the next one pays for going back to single rows.
        extra_s = draft_s + (0.0 if self._since_plain else self.cost.switch_s)
        cheapest = (self.cost.seconds(n_always + 1, n_ctx) + extra_s) / plain_s
        if 1.0 + sum(reaches) / together <= _MARGIN * cheapest:
            return NO_DRAFT  # most rounds end here: even all of it would not pay for a single row
        self._n_hopeless = 0
        best, best_rate = 0, _MARGIN
        expected, certain, reach_before = 1.0, 0, 1.0
        # What a rejection after so many accepted tokens adds to the next pass, and what it adds in the mean.
        again_s = [self._again_s(n_always + n, n_other_rows, n_ctx) for n in range(len(reaches))] if replays else []
        mean_again_s = 0.0
        for n, reach in enumerate(reaches, 1):
            expected += reach / together
            certain += reach >= _CERTAIN
            pass_s = self.cost.seconds(n_always + n, n_ctx) + extra_s
            cautious_s = worst_s = pass_s
            if replays:
                mean_again_s += (reach_before - reach) * again_s[n - 1]
                reach_before = reach
                cautious_s += again_s[certain] if certain < n else 0.0
                worst_s += max(again_s[:n])
            rate = expected * plain_s / (pass_s + mean_again_s)
            if exact_length(n, n_always, exact) < n:
                continue
            loss, worst_loss = together * (cautious_s / step_s - 1.0) - certain, together * (worst_s / step_s - 1.0)
            if behind:  # as it will be booked, and a token of the first drafter's
                first = together * (self.cost.seconds(n_always + 1, n_ctx) / step_s - 1.0)
                worst_loss += max(_DOUBT, self.cost.doubt) * (1.0 + worst_loss) + first
            if rate > best_rate and self.ledger.affords(loss, worst_loss):
                best, best_rate = n, rate
        return cut(proposal, best)

    @property
    def _stale(self) -> bool:
        """Whether what plain decoding costs should be measured again."""
        n = self._since_measured
        doubted = n >= _DOUBTED_AFTER and 2.0 * self._won / n <= _FORGONE * self._spent
        return n >= _STALE_AFTER or doubted

    def _again_s(self, n_again: int, n_other_rows: int, n_ctx: int) -> float:
        """Seconds that the next pass takes longer when `n_again` tokens are evaluated anew, the way back included."""
        longer_s = self.cost.seconds(n_again + 1, n_ctx) - self.cost.seconds(1 + n_other_rows, n_ctx)
        return max(0.0, longer_s) + self.cost.restore_s

    def book(
        self, width: int, n_ctx: int, n_tokens: int, verify_s: float, draft_s: float, n_other_rows: int = 0
    ) -> float:
        """Account for a round of `width` rows that made `n_tokens`; return seconds gained over plain decoding.

        `verify_s` is the whole pass, also that of other sessions; a pass at width 1 is plain decoding by definition.
        """
        plain_s = self.cost.seconds(1 + n_other_rows, n_ctx)
        back_s = self.cost.switch_s if self._since_plain else 0.0
        verify_s = self._believed(verify_s, self.cost.seconds(width + n_other_rows, n_ctx))
        steps = draft_s / plain_s + (1.0 + back_s / plain_s if width == 1 else verify_s / plain_s)
        if width > 1:
            steps = 1.0 + self._n_together * (steps - 1.0)
        doubt = 0.0 if width == 1 else max(_DOUBT, self.cost.doubt)
        self.ledger.book(steps * (1.0 + doubt), n_tokens)
        if width > 1:
            self._since_plain += 1
            self._since_measured += 1
            self._spent += steps
            self._won += n_tokens - steps
        elif self._since_plain:
            self._since_plain = 0  # the way back: its time says little of the passes that follow
        else:
            self._since_measured, self._spent, self._won = 0, 0.0, 0.0
        return (n_tokens - steps) * plain_s

    def _believed(self, verify_s: float, expected_s: float) -> float:
        """What a pass counts for: a stall is another program's doing, not the draft's; two in a row are dear passes."""
        was_late, self._late = self._late, verify_s > _LATE * expected_s
        return min(verify_s, (_DEAR if was_late else _LATE) * expected_s)


def exact_length(n: int, n_always: int, exact: frozenset[int] | None) -> int:
    """The longest draft of at most `n` tokens that makes a batch, with `n_always` other tokens, of a width in `exact`.

    None allows any width.
    """
    while n and exact is not None and n_always + n not in exact:
        n -= 1
    return n


def cut(draft: Draft, n: int) -> Draft:
    """The first `n` nodes of a draft."""
    if n >= len(draft.tokens):
        return draft
    return Draft(draft.tokens[:n], draft.parents[:n], draft.strength[:n], draft.confidence[:n]) if n else NO_DRAFT


_CHAINS = [tuple(range(-1, n - 1)) for n in range(65)]


def chain_parents(n: int) -> tuple[int, ...]:
    """Parents of a chain of `n` tokens."""
    return _CHAINS[n] if n < len(_CHAINS) else tuple(range(-1, n - 1))


def chain(draft: Draft) -> Draft:
    """The leading chain of a tree: nodes that each follow the one before."""
    if draft.parents == chain_parents(len(draft.tokens)):
        return draft
    n = len(draft.tokens)
    return cut(draft, next((i for i, parent in enumerate(draft.parents) if parent != i - 1), n))
