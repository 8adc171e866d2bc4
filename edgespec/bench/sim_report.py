"""What simulated devices did, as a table for a terminal of 80 columns and as JSON. None is unknown, and a dash."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from edgespec.bench.modes import PLAIN
from edgespec.bench.runner import Run
from edgespec.bench.sim_texts import Texts
from edgespec.bench.simulate import Outcome, Scene

_VERSION = 1
_DASH = "–"


def group_ratios(plain: Sequence[Run], other: Sequence[Run]) -> dict[str, float]:
    """Times as fast as plain decoding by group, over the answers that both finished."""
    spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    base = {(run.question_id, run.round): run for run in plain}
    for run in other:
        pair = base.get((run.question_id, run.round))
        if pair is not None and pair.decoded == run.decoded and run.decode_s:
            spent[run.group][0] += pair.decode_s
            spent[run.group][1] += run.decode_s
    return {group: plain_s / other_s for group, (plain_s, other_s) in spent.items()}


def geometric_mean(ratios: Mapping[str, float]) -> float | None:
    """Over groups; None where there are none."""
    return math.exp(sum(map(math.log, ratios.values())) / len(ratios)) if ratios else None


def table(outcomes: Sequence[Outcome]) -> str:
    """A line a mode, by policy. `ratio` is of tokens a second over all answers, `groups` the mean over groups."""
    head = f"{'policy':<9}{'mode':<10}{'tok/s':>6} {'ratio':>6} {'groups':>6} {'tok/rnd':>7}"
    lines = [f"{head} {'acc.':>6} {'J/token':>7} {'max °C':>6} {'throttled':>9}"]
    seen = ""
    for outcome in outcomes:
        plain = _plain(outcomes, outcome)
        drafted = sum(run.drafted for run in outcome.runs)
        accepted = sum(run.accepted for run in outcome.runs)
        row = f"{'' if outcome.policy == seen else outcome.policy:<9}{outcome.mode[:9]:<10}{_n(outcome.tok_s, 2):>6}"
        if outcome is plain or plain is None:
            row += f" {_DASH:>6} {_DASH:>6}"
        else:
            groups = geometric_mean(group_ratios(plain.runs, outcome.runs))
            row += f" {_n(_ratio(outcome, plain), 2):>6} {_n(groups, 2):>6}"
        row += f" {_n(outcome.tokens_per_round, 2):>7} {_percent(accepted / drafted if drafted else None):>6}"
        throttled = None if outcome.throttled_s is None else outcome.throttled_s / outcome.seconds
        row += f" {_n(outcome.j_token, 3):>7} {_n(outcome.max_temp_c, 1):>6} {_percent(throttled):>9}"
        lines.append(row.rstrip())
        seen = outcome.policy
    return "\n".join(lines) + "\n"


def speed(outcomes: Sequence[Outcome]) -> float:
    """How many times faster than the devices it was simulated."""
    return sum(outcome.seconds for outcome in outcomes) / max(1e-9, sum(outcome.host_s for outcome in outcomes))


def to_json(scene: Scene, texts: Texts, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Everything that went in and came out; seconds, joules, degrees Celsius."""
    return {
        "version": _VERSION,
        "profile": {
            "name": scene.profile.name,
            "conditions": scene.profile.conditions,
            "basis": {name: list(basis) for name, basis in scene.profile.basis.items()},
        },
        "scene": {
            "minutes": scene.minutes,
            "max_draft": scene.max_draft,
            "seed": scene.seed,
            "events": asdict(scene.events),
        },
        "texts": {"n": len(texts.traces), "pieces": texts.pieces is not None},
        "times_real_time": speed(outcomes),
        "outcomes": [_outcome_json(outcome, _plain(outcomes, outcome)) for outcome in outcomes],
    }


def _outcome_json(outcome: Outcome, plain: Outcome | None) -> dict[str, object]:
    ratios = group_ratios(plain.runs, outcome.runs) if plain is not None else {}
    return {
        "mode": outcome.mode,
        "policy": outcome.policy,
        "answers": len(outcome.runs),
        "seconds": outcome.seconds,
        "tokens": sum(run.tokens for run in outcome.runs),
        "decoded": outcome.decoded,
        "decode_s": sum(run.decode_s for run in outcome.runs),
        "prefill_s": sum(run.prefill_s for run in outcome.runs),
        "tok_s": outcome.tok_s,
        "ratio": None if plain is None else _ratio(outcome, plain),
        "ratio_groups": geometric_mean(ratios),
        "groups": ratios,
        "tokens_per_round": outcome.tokens_per_round,
        "drafted": sum(run.drafted for run in outcome.runs),
        "accepted": sum(run.accepted for run in outcome.runs),
        "joules": outcome.joules,
        "j_token": outcome.j_token,
        "max_temp_c": outcome.max_temp_c,
        "throttled_s": outcome.throttled_s,
        "team_changes": outcome.n_team_changes,
        "reasons": list(outcome.reasons),
        "host_s": outcome.host_s,
    }


def _plain(outcomes: Sequence[Outcome], outcome: Outcome) -> Outcome | None:
    return next((o for o in outcomes if o.mode == PLAIN and o.policy == outcome.policy), None)


def _ratio(outcome: Outcome, plain: Outcome) -> float | None:
    return outcome.tok_s / plain.tok_s if outcome.tok_s and plain.tok_s else None


def _n(value: float | None, digits: int) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{100.0 * share:.0f} %"
