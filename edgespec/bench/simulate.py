"""Decoding on a simulated device: the real rounds, controller, governor and drafter, on texts that are known.

Mirrors `edgespec.machine.Machine`, which runs the same on a real one. Each mode has a device of its own that begins at
rest, so that modes can be compared; a seed decides everything random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgespec.bench.device_model import Profile
from edgespec.bench.modes import Mode
from edgespec.bench.oracle import OracleDrafter
from edgespec.bench.runner import Run
from edgespec.bench.sim_device import Events, SimDevice, SimTarget, at
from edgespec.bench.sim_texts import Texts
from edgespec.bench.trace import Trace
from edgespec.calibrate import WIDTHS, calibrate, choose_threads
from edgespec.conditions import Team
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy, Policy
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft import AUTO, REGISTRY
from edgespec.errors import EvalCancelled
from edgespec.interfaces import Draft, Drafter, Limits, Sampling

_LOOK_EVERY_S = 1.0
_MAX_PAUSE_S = 0.25
_GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Scene:
    """Where and how long it is decoded."""

    profile: Profile
    events: Events = field(default_factory=Events)
    minutes: float | None = None
    """Simulated time, all texts again and again; None: every text once."""
    max_draft: int = 15
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One mode under one policy. Times in seconds of the simulated clock; None: unknown on this device."""

    mode: str
    policy: Policy
    runs: tuple[Run, ...]
    seconds: float
    """From the first request to the end of the last answer."""
    joules: float | None
    """Drawn for decoding and reading prompts, above idle."""
    max_temp_c: float | None
    throttled_s: float | None
    """How long heat held the clock back."""
    n_team_changes: int
    reasons: tuple[str, ...]
    """What changed the team and the limits of heat, without repeats."""
    host_s: float
    """What the simulation itself took, in real seconds."""

    @property
    def decoded(self) -> int:
        """Tokens after the first of each answer."""
        return sum(run.decoded for run in self.runs)

    @property
    def tok_s(self) -> float | None:
        """Tokens a second of decoding, prompts left out."""
        decode_s = sum(run.decode_s for run in self.runs)
        return self.decoded / decode_s if decode_s else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a pass of decoding brought."""
        rounds = sum(run.rounds for run in self.runs)
        return self.decoded / rounds if rounds else None

    @property
    def j_token(self) -> float | None:
        """Joules per token of an answer."""
        tokens = sum(run.tokens for run in self.runs)
        return self.joules / tokens if tokens and self.joules is not None else None


def simulate(scene: Scene, texts: Texts, modes: Sequence[Mode], policies: Sequence[Policy]) -> list[Outcome]:
    """Every mode under every policy, by policy and then by mode."""
    return [simulate_one(scene, texts, mode, policy) for policy in policies for mode in modes]


def simulate_one(scene: Scene, texts: Texts, mode: Mode, policy: Policy) -> Outcome:
    """One mode under one policy, on a device that begins at rest."""
    began_s = time.perf_counter()
    machine = SimMachine(scene, mode, policy)
    runs = []
    for number, trace in _turns(texts, scene.minutes):
        run = machine.answer(trace, texts, number)
        runs.append(run)
        if scene.minutes is not None and machine.clock.now_s >= 60.0 * scene.minutes:
            break
    device, heats = machine.device, scene.profile.heats
    changes = machine.governor.changes
    reasons = dict.fromkeys([*(change.reason for change in changes), *machine.limits])
    return Outcome(
        mode.name,
        policy,
        tuple(runs),
        machine.clock.now_s,
        device.joules if heats else None,
        device.max_temp_c if heats else None,
        device.throttled_s if heats else None,
        len(changes),
        tuple(reasons),
        time.perf_counter() - began_s,
    )


def _turns(texts: Texts, minutes: float | None) -> Iterator[tuple[int, Trace]]:
    number = 0
    while number == 0 or minutes is not None:
        yield from ((number, trace) for trace in texts.traces)
        number += 1


class SimMachine:
    """One mode's device, what governs it, and what it learns from answer to answer."""

    def __init__(self, scene: Scene, mode: Mode, policy: Policy) -> None:
        """Measure what passes cost, as an engine does when it opens."""
        self.scene = scene
        self.mode = mode
        profile = scene.profile
        self.device = SimDevice(profile, scene.events, scene.seed)
        self.clock = self.device.clock
        self.target = SimTarget(self.device)
        team = Team(profile.n_team, profile.n_team)
        # A power profile is for all programs: only who asked for `cool` gets it (see Machine).
        asks = profile.slowing == "clamp" or (profile.slowing == "saver" and policy == "cool")
        heat = HeatPolicy(policy, scene.max_draft, profile.n_team, slowing=profile.slowing if asks else None)  # type: ignore[arg-type]  # "none" never asks
        self.governor = Governor(team, heat, n_usable=profile.n_team, n_draft_max=scene.max_draft)
        self.limits: dict[str, None] = {}
        """What heat did, in plain words, in order of appearance."""
        self.prior = Prior()
        self.controller: Controller | None = None
        """Of the answer in the making; None where lengths are fixed."""
        self._looked_s = float("-inf")
        self._behind = False
        self.cost = self._calibrate()

    def answer(self, trace: Trace, texts: Texts, number: int = 0) -> Run:
        """Let the target write one answer; prompt and answer are known."""
        if self.mode.drafter != "none" and len(self.cost.widths) == 1:
            self.cost = self._calibrate()  # as an engine does while wider passes were not measured
        ids = {token: local for local, token in enumerate(dict.fromkeys((*trace.prompt, *trace.answer)))}
        prompt = [ids[token] for token in trace.prompt]
        answer = [ids[token] for token in trace.answer]
        self.target.tell((*prompt, *answer))
        self.target.clear(0)
        tokens = list(ids)
        pieces = texts.pieces

        def piece(local: int) -> bytes:
            return b"" if pieces is None else pieces[tokens[local]]

        drafting, fixed = None, self.mode.fixed_draft
        self.controller = None
        if self.mode.drafter != "none":
            name = AUTO if self.mode.drafter == "auto" else self.mode.drafter
            if self.mode.make is not None:
                made = self.mode.make()
            else:
                made = OracleDrafter(prompt, answer) if self.mode.knows_the_text else REGISTRY[name](piece)
            drafting = Drafting(_Timed(made, self.device), self.target.n_vocab)
            if fixed is None:
                self.controller = Controller(self.cost, Acceptance(self.prior, _GREEDY.temperature))
        limits = Limits(len(answer), max_draft=fixed or self.scene.max_draft, fixed_draft=fixed)
        began_s = self.clock.now_s
        session = Session(self.target)
        generation = Generation(session, prompt, _GREEDY, limits, piece, self.clock, drafting, self.controller)
        end_s = float("inf") if self.scene.minutes is None else 60.0 * self.scene.minutes
        while generation.finish_reason is None and self.clock.now_s < end_s:
            self.round(generation)
        generation.cancel()
        stats = generation.stats
        first_s, last_s = stats.first_token_s, stats.last_token_s
        return Run(
            trace.question_id,
            trace.group,
            number,
            self.mode.name,
            0,
            tokens=len(generation.tokens),
            decoded=max(0, len(generation.tokens) - 1),
            decode_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            ttft_s=None if first_s is None else first_s - began_s,
            total_s=self.clock.now_s - began_s,
            prefill_s=stats.prefill_s,
            drafted=stats.drafted,
            accepted=stats.accepted,
            rounds=stats.rounds,
            accepted_by_position=tuple(stats.by_position),
            widths=dict(stats.widths),
            saved_s=stats.saved_s,
            drafter=self.mode.drafter,
            finish_reason=generation.finish_reason,
            ids=tuple(tokens[local] for local in generation.tokens),
            verify_s=stats.verify_s,
            draft_s=stats.draft_s,
        )

    def round(self, generation: Generation) -> None:
        """One round, as `Machine.round` plays it."""
        began_s = self.clock.now_s
        if began_s - self._looked_s >= _LOOK_EVERY_S:
            self._look(began_s)
        self.target.team = self.governor.team
        self.target.patience_s = None if generation.prefilling else self.governor.patience_s(generation.session.n_kv)
        try:
            play_round([generation], self.target, self.clock, self.governor)
        except EvalCancelled:
            self.governor.stalled(self.clock.now_s)
            self.target.team, self.target.patience_s = self.governor.team, None
            play_round([generation], self.target, self.clock, self.governor)
        self.device.spend(self.scene.profile.round_s)
        if self.governor.pace:
            self.device.spend(min(_MAX_PAUSE_S, self.governor.pace * (self.clock.now_s - began_s)))

    def _look(self, now_s: float) -> None:
        """Once a second: to which cores the system confines us, and what the sensors say."""
        self._looked_s = now_s
        profile = self.scene.profile
        behind = at(self.scene.events.background, now_s) > 0.0
        if behind != self._behind:
            self._behind = behind
            self.device.cores = profile.background() if behind else profile
            n = self.device.cores.n_team
            self.governor.move(Team(n, n), n, now_s, f"{n} cores may be used now")
        self.governor.update(self.device.conditions())
        self.limits.update(dict.fromkeys(self.governor.heat.limits.reasons))
        clock = self.governor.max_clock
        if clock is not None and profile.slowing == "saver":
            clock = profile.saver_clock
        self.device.top = 1.0 if clock is None else clock

    def _calibrate(self) -> CostModel:
        """As `Machine.calibrate`: how many threads are fastest, and what passes of each width cost with them."""
        full = self.governor.full
        chosen = choose_threads(self.target, self.clock, lambda n: self._use(full, n), full.one)
        self._use(full, chosen)
        table = calibrate(self.target, self.clock, widths=(1,) if self.mode.drafter == "none" else WIDTHS)
        cost = CostModel(replace(table, one=self.target.team.one, wide=self.target.team.wide))
        self.governor.use_cost(cost, self.clock.now_s, full)
        return cost

    def _use(self, full: Team, n: int) -> None:
        self.target.use_team(replace(full, one=n, wide=max(1, full.wide - (full.one - n))))


class _Timed:
    """A drafter whose questions take simulated time."""

    def __init__(self, drafter: Drafter, device: SimDevice) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._device = device

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        self._device.spend(self._device.profile.ask_s)
        return self._drafter.propose(context, limit)

    def close(self) -> None:
        self._drafter.close()
