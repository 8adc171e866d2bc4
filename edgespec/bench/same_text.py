"""Whether texts written under an exact recipe are those of plain decoding, token for token, whatever happens meanwhile.

Plain: one sequence, nothing drafted, one thread for single rows. Against it: several sequences in the batch, drafts of
any length, right and wrong, and a team that changes before every pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgespec.certify_grid import CertTarget
from edgespec.conditions import Team
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller, chain_parents
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.exact import Recipe
from edgespec.interfaces import NO_DRAFT, Draft, Drafter, Limits, Plan, Rows, Sampling

_MAX_DRAFT = 15
_CHEAP = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4, 16: 1.8}
"""Prices by which the controller drafts a lot."""


@dataclass(frozen=True, slots=True)
class Same:
    """A comparison of texts."""

    name: str
    n_tokens: int
    n_differing: int
    """Tokens from the first that differs on, over all texts."""
    n_drafted: int
    n_accepted: int
    widths: frozenset[int]
    """Rows of the passes, of the whole batch."""
    n_together: int
    """Most sequences in a batch."""


class OddDrafter:
    """Guesses 0 to 15 tokens at random: so many right ones of a known text, then wrong ones."""

    name = "odd"

    def __init__(self, prompt: Sequence[int], answer: Sequence[int], n_vocab: int, rng: random.Random) -> None:
        """`answer` is what will be written after `prompt`."""
        self._text, self._n_vocab, self._rng = [*prompt, *answer], n_vocab, rng

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """At most `limit` tokens."""
        n = min(limit, self._rng.randint(0, _MAX_DRAFT))
        n_right = self._rng.randint(0, n)
        tokens = self._text[len(context) : len(context) + n_right]
        tokens += [self._rng.randrange(self._n_vocab) for _ in range(n - len(tokens))]
        return Draft(tuple(tokens), chain_parents(n), (0,) * n, (0.9,) * n) if n else NO_DRAFT

    def close(self) -> None:
        """Nothing to free."""


def sessions_of(target: CertTarget, n_sessions: int) -> list[Session]:
    """Empty sessions. Handed to the functions below they keep their prompt's cache from call to call."""
    found = [Session(target, seq, _share(target, n_sessions)) for seq in range(n_sessions)]
    for session in found:
        session.forget()
    return found


def plain_texts(
    target: CertTarget,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_tokens: int,
    n_threads: int,
    session: Session | None = None,
) -> list[tuple[int, ...]]:
    """Answers one at a time, undrafted, in sequence 0; each from an empty cache where no `session` is given."""
    target.use_team(Team(1, n_threads))
    answers = []
    for prompt in prompts:
        own = session or sessions_of(target, 1)[0]
        answers.append(_written([_generation(own, prompt, sampling, max_tokens)], target)[0])
        if session is None:
            own.forget()
    return answers


def compare(
    name: str,
    target: CertTarget,
    recipe: Recipe,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    sampling: Sampling,
    max_tokens: int,
    n_threads: int,
    *,
    n_sessions: int = 1,
    sessions: Sequence[Session] | None = None,
    odd: bool = False,
    seed: int = 0,
) -> Same:
    """The same answers drafted, `n_sessions` at a time, on a team that changes; against `plain`.

    Args:
        name: of the comparison.
        target: limited by `recipe` already, with that many sequences.
        recipe: what must be kept to.
        prompts: to answer.
        plain: what `plain_texts` gave for them.
        sampling: how tokens are drawn.
        max_tokens: longest answer.
        n_threads: of the largest team.
        n_sessions: sequences side by side.
        sessions: so many, which keep their prompts cached; None: every answer starts from an empty cache.
        odd: drafts of random length in place of n-grams chosen by the controller.
        seed: of what is random.
    """
    rng = random.Random(seed)
    watched = _Watched(target)
    cost = CostModel(CostTable({width: steps / 1000 for width, steps in _CHEAP.items()}))
    found = Same(name, 0, 0, 0, 0, frozenset(), 0)
    for first in range(0, len(prompts), n_sessions):
        group = list(zip(prompts[first : first + n_sessions], plain[first : first + n_sessions], strict=True))
        generations = []
        for seq, (prompt, answer) in enumerate(group):
            session = sessions[seq] if sessions else Session(target, seq, _share(target, n_sessions))
            if not sessions:
                session.forget()
            drafter: Drafter = OddDrafter(prompt, answer, target.n_vocab, rng) if odd else SuffixDrafter()
            drafting = Drafting(drafter, target.n_vocab)
            controller = None if odd else Controller(cost, Acceptance(Prior(), sampling.temperature))
            generations.append(_generation(session, prompt, sampling, max_tokens, drafting, controller))

        def change() -> None:
            one = 1 if recipe.one_thread else rng.randint(1, n_threads)
            target.use_team(Team(one, rng.randint(1, n_threads)))

        answers = _written(generations, watched, change)
        for generation, drafted, (_, answer) in zip(generations, answers, group, strict=True):
            report = generation.result().report
            found = replace(
                found,
                n_tokens=found.n_tokens + len(answer),
                n_differing=found.n_differing + _differing(drafted, answer),
                n_drafted=found.n_drafted + report.drafted,
                n_accepted=found.n_accepted + report.accepted,
            )
            if not sessions:
                generation.session.forget()
    return replace(found, widths=frozenset(watched.widths), n_together=watched.n_together)


def added(a: Same, b: Same) -> Same:
    """Both comparisons as one."""
    return Same(
        a.name, a.n_tokens + b.n_tokens, a.n_differing + b.n_differing, a.n_drafted + b.n_drafted,
        a.n_accepted + b.n_accepted, a.widths | b.widths, max(a.n_together, b.n_together),
    )  # fmt: skip


class _Watched:
    """A target whose passes are looked at."""

    def __init__(self, target: CertTarget) -> None:
        self._target = target
        self.widths: set[int] = set()
        self.n_together = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """See `Target.eval`."""
        if all(len(plan.pending) == 1 for plan in plans):
            self.widths.add(sum(plan.n_tokens for plan in plans))
            self.n_together = max(self.n_together, len(plans))
        return self._target.eval(plans)


def _generation(
    session: Session,
    prompt: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
    drafting: Drafting | None = None,
    controller: Controller | None = None,
) -> Generation:
    limits = Limits(max_tokens, max_draft=_MAX_DRAFT)
    return Generation(session, prompt, sampling, limits, lambda _: b"x", lambda: 0.0, drafting, controller)


def _written(
    generations: Sequence[Generation], target: object, before: Callable[[], object] = lambda: None
) -> list[tuple[int, ...]]:
    active = list(generations)
    while active:
        before()
        play_round(active, target, lambda: 0.0)  # type: ignore[arg-type]  # a watched target is one in all but name
        active = [generation for generation in active if generation.finish_reason is None]
    return [tuple(generation.tokens) for generation in generations]


def _differing(drafted: Sequence[int], plain: Sequence[int]) -> int:
    n_same = next((i for i, pair in enumerate(zip(drafted, plain, strict=False)) if pair[0] != pair[1]), None)
    if n_same is None:
        n_same = min(len(drafted), len(plain))
    return max(len(drafted), len(plain)) - n_same


def _share(target: CertTarget, n_sessions: int) -> int:
    return target.n_ctx // n_sessions
