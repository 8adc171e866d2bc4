"""The loop: draft, one batch, verify, commit, over all sessions that are active."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.core.generation import Generation, Timing
from edgespec.core.governor import Governor
from edgespec.interfaces import Chunk, Target


def play_round(
    active: Sequence[Generation], target: Target, clock: Callable[[], float], governor: Governor | None = None
) -> list[Chunk]:
    """Advance every active generation by one pass; return what each may show, in order.

    All must be unfinished. Models whose memory takes one sequence a batch get one batch each.

    Raises:
        EvalError: the target refused a batch. Generations of earlier batches have advanced, the others have not.
    """
    chunks: dict[int, Chunk] = {}
    exact = target.capabilities.exact_widths
    for group in batches(active, target):
        n_chunk = target.n_batch // len(group)
        n_rows_max = target.n_rows_max if exact is None or len(group) == 1 else all_up_to(exact)
        n_draft_max = min(n_chunk, n_rows_max // len(group)) - 1
        if governor is not None:
            n_draft_max = min(n_draft_max, governor.max_draft)
        plans = [generation.plan(n_chunk, n_draft_max, len(group) - 1) for generation in group]
        decoding = not any(generation.prefilling for generation in group)
        n_rows = sum(plan.n_rows for plan in plans)
        began_s = clock()
        rows = target.eval(plans)
        ended_s = clock()
        if governor is not None and decoding:
            n_tokens = sum(plan.n_tokens for plan in plans)
            governor.observe(n_tokens, sum(plan.n_past for plan in plans), ended_s - began_s, ended_s)
        for generation, plan, its_rows in zip(group, plans, rows, strict=True):
            timing = Timing(began_s, ended_s, n_rows - plan.n_rows)
            chunks[id(generation)] = generation.absorb(plan, its_rows, timing)
    return [chunks[id(generation)] for generation in active]


def batches(active: Sequence[Generation], target: Target) -> list[Sequence[Generation]]:
    """Which of these share a pass.

    Where widths must be exact, a prompt goes alone, so that its chunks depend on itself only.
    """
    can = target.capabilities
    n_together = max(1, min(can.sessions_per_batch, target.n_rows_max))
    alone: list[Sequence[Generation]] = []
    if can.exact_widths is not None:
        n_together = min(n_together, all_up_to(can.exact_widths))
        alone = [[generation] for generation in active if generation.prefilling]
        active = [generation for generation in active if not generation.prefilling]
    return alone + [active[first : first + n_together] for first in range(0, len(active), n_together)]


def all_up_to(exact: frozenset[int]) -> int:
    """The width up to which all are exact: llama.cpp may cut a batch of several sequences into any smaller ones."""
    width = 1
    while width + 1 in exact:
        width += 1
    return width
