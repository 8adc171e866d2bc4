"""Which way of computing gives the same text drafted or not, and what it costs: chosen from a certificate.

Nothing is claimed beyond what was certified: at a longer context nothing is drafted where exactness was asked for, and
where it was not, drafts go on and the report says so. Between the lengths that were measured, logits are taken to
behave as they do there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgespec.certificate import Certificate
from edgespec.core.round import all_up_to
from edgespec.errors import ConfigError
from edgespec.interfaces import Capabilities

_FREE = 1.02
"""A recipe that costs at most this much more than the default is used without being asked for."""
_ALL_THAT_PAY = frozenset(range(2, 9))
"""Widths that must be exact for that: fewer would cost what a certificate does not price."""
CERTIFY = "run `edgespec certify` first (three minutes with --quick)"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way of computing under which the logits of a row do not depend on drafts, threads and company."""

    kv: str
    one_thread: bool
    """Single rows keep to one thread; else the team may have any size."""
    widths: frozenset[int]
    """Widths of a batch, 1 included."""
    company: bool
    """Whether several sequences may share a batch."""
    n_ctx: int
    """Tokens of a text up to which this was certified."""
    cost: float | None
    """A pass of one row and one of four, over the same with the default KV type and all threads; None: not known."""

    asked: bool = True
    """Whether exactness was asked for: then nothing is drafted beyond `n_ctx`, else drafts go on inexactly."""

    def limit(self, can: Capabilities) -> Capabilities:
        """What is left of a target's capabilities."""
        widths = self.widths
        if can.rollback == "replay":  # the next pass evaluates accepted tokens again: any width up to this one's
            widths = frozenset(range(1, all_up_to(widths) + 1))
        together = can.sessions_per_batch if self.company else 1
        return replace(
            can, exact_widths=widths, exact_n_ctx=self.n_ctx, exact_only=self.asked, sessions_per_batch=together,
            tree=False,
        )  # fmt: skip

    def __str__(self) -> str:
        """In plain words."""
        threads = ", one thread for single rows" if self.one_thread else ""
        return f"KV cache {self.kv}{threads}, {spelled(self.widths - {1})} up to {self.n_ctx} tokens"


@dataclass(frozen=True, slots=True)
class Decision:
    """The recipe to keep to, if any, and why."""

    recipe: Recipe | None
    why: str


def recipes(certificate: Certificate, n_ctx: int, kv: str | None = None) -> tuple[Recipe, ...]:
    """All recipes for a context of `n_ctx` tokens, the best first.

    Those with widths over 1 come before those without, then the cheaper ones.
    """
    found = []
    for name in certificate.kv_types if kv is None else (kv,):
        recipe = _recipe(certificate, name, n_ctx)
        if recipe is not None:
            found.append(replace(recipe, cost=_cost(certificate, name, n_ctx, one_thread=recipe.one_thread)))
    return tuple(
        sorted(found, key=lambda r: (len(r.widths) == 1, float("inf") if r.cost is None else r.cost, -len(r.widths)))
    )


def decide(
    asked: bool | None,
    certificate: Certificate | None,
    n_ctx: int,
    *,
    kv: str | None = None,
    n_threads: int = 1,
    problem: str | None = None,
) -> Decision:
    """Whether and how to be exact.

    Args:
        asked: True and False as the user said; None: where it is free.
        certificate: what was measured; None: nothing.
        n_ctx: tokens the context holds.
        kv: the KV types to keep to; None: any.
        n_threads: threads of the largest team.
        problem: why there is no certificate, where one was expected, and what to do about it.

    Raises:
        ConfigError: exactness was asked for, and nothing is certified.
    """
    if asked is False:
        return Decision(None, "it was switched off")
    lacks = problem
    if certificate is None:
        lacks = lacks or "nothing is certified for this model, build and machine"
    elif n_threads > certificate.n_threads:
        lacks = f"the certificate is of {certificate.n_threads} threads, {n_threads} are wanted"
    if certificate is None or lacks is not None:
        if asked:
            raise ConfigError(f"--exact: {lacks}: {CERTIFY}" if problem is None else f"--exact: {problem}")
        return Decision(None, f"{lacks}; `edgespec certify` measures it" if problem is None else problem)
    found = recipes(certificate, n_ctx, kv)
    if not found:
        if asked:
            raise ConfigError(f"--exact: {kv or 'this model'} has no exact recipe here: leave --exact out")
        return Decision(None, "no exact recipe was found")
    best = found[0]
    if asked and len(best.widths) > 1:
        return Decision(best, f"{best}: asked for")
    if asked:
        return Decision(best, f"{best}: nothing is drafted, which is allowed only without --exact")
    free = [r for r in found if r.cost is not None and r.cost <= _FREE and r.widths >= _ALL_THAT_PAY]
    if free:
        return Decision(replace(free[0], asked=False), f"{free[0]}: certified to cost at most 2 %")
    if len(best.widths) == 1:
        return Decision(None, "no width is exact here")
    if best.cost is not None and best.cost <= _FREE:
        lost = _ALL_THAT_PAY - best.widths
        which = f"width {min(lost)} is" if len(lost) == 1 else f"{spelled(lost)} are"
        return Decision(None, f"{which} not exact; --exact does without")
    price = "costs an unknown share" if best.cost is None else f"costs {100 * (best.cost - 1):.0f} %"
    return Decision(None, f"the cheapest exact recipe {price}; --exact takes it")


def spelled(widths: frozenset[int]) -> str:
    """Widths for people: "widths 2-7, 9"."""
    runs: list[list[int]] = []
    for width in sorted(widths):
        if runs and width == runs[-1][-1] + 1:
            runs[-1].append(width)
        else:
            runs.append([width])
    if not runs:
        return "no width over 1"
    return "widths " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _recipe(certificate: Certificate, kv: str, n_ctx: int) -> Recipe | None:
    """The recipe of one KV type; None where the threads of wide passes or of the prompt matter."""
    several = certificate.n_threads > 1
    if not certificate.find("width", kv, n_ctx) and not certificate.find("single", kv, n_ctx):
        return None
    if several and not (certificate.exact("wide", kv, n_ctx) and certificate.exact("prefill", kv, n_ctx)):
        return None
    free = not several or certificate.exact("single", kv, n_ctx)
    widths = certificate.exact_widths(kv, n_ctx) | {1}
    company = certificate.exact("company", kv, n_ctx)
    return Recipe(kv, not free, widths, company, min(n_ctx, certificate.n_ctx), None)


def _cost(certificate: Certificate, kv: str, n_ctx: int, *, one_thread: bool) -> float | None:
    """A pass of one row and one of four over the default's, at the contexts up to `n_ctx`; None: not known."""
    its_ms = usual_ms = 0.0
    for price in certificate.prices:
        if price.kv == kv and price.n_ctx < n_ctx:
            if price.usual_ms is None:
                return None
            its_ms += (price.one_thread_ms if one_thread else price.one_ms) + price.four_ms
            usual_ms += price.usual_ms
    return its_ms / usual_ms if usual_ms else None
