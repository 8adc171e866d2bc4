"""What a drafter package is worth on a model: how often its tokens are right, by place and confidence, and their price.

Every round is drafted at full length, so that each place is tried whenever the ones before it were right. Whether that
is faster is not asked here: `bench` measures that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.bench.runner import prompt_of
from edgespec.bench.workloads import Question
from edgespec.core.trace import RoundTrace
from edgespec.draft.onnx import Loaded, OnnxDrafter
from edgespec.draft.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.errors import DrafterError
from edgespec.interfaces import Limits, Sampling

BOUNDS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Between classes of confidence, as they are shown."""


@dataclass(slots=True)
class Share:
    """How many of some guesses were right."""

    n: int = 0
    n_right: int = 0

    def add(self, right: bool) -> None:
        """One guess more."""
        self.n += 1
        self.n_right += right

    @property
    def value(self) -> float | None:
        """Right ones among all; None: there was none."""
        return self.n_right / self.n if self.n else None


@dataclass(slots=True)
class Evaluation:
    """Counts over all answers. `by_place` counts a place only where all before it were right."""

    by_place: list[Share]
    beyond_ngrams: Share
    """The first place, where the n-gram drafter proposes nothing."""
    by_confidence: list[Share]
    """Of the first place; class i lies above `BOUNDS[i - 1]`."""
    n_rounds: int = 0
    n_tokens: int = 0
    n_drafted: int = 0
    draft_s: float = 0.0

    @property
    def ms_token(self) -> float | None:
        """Milliseconds a drafted token, calling the drafter and deciding included; None: none was drafted."""
        return 1e3 * self.draft_s / self.n_drafted if self.n_drafted else None


def evaluate(
    engine: Engine,
    loaded: Loaded,
    questions: Sequence[Question],
    max_tokens: int,
    sampling: Sampling,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Evaluation:
    """Let the model answer, drafting with the package in every round.

    `progress` is told how many questions are done, of how many.

    Raises:
        DrafterError: the package does not fit the model, or failed meanwhile.
        ModelError: a question does not fit the context.
    """
    n_draft = loaded.card.n_draft
    found = Evaluation([Share() for _ in range(n_draft)], Share(), [Share() for _ in range(len(BOUNDS) + 1)])
    for number, question in enumerate(questions):
        prompt = prompt_of(engine, question)
        drafter = OnnxDrafter(loaded=loaded)
        stream = engine.stream(prompt, sampling, Limits(max_tokens, fixed_draft=n_draft), drafter=drafter)
        rounds = stream.record()
        for _ in stream:
            pass
        report = stream.result.report
        if report.drafter != drafter.name:
            said = (note for note in report.notes if drafter.name in note)
            raise DrafterError(report.drafter_off_reason or next(said, f"{drafter.name} did not draft"))
        ngrams = SuffixDrafter(engine.target.piece)
        text = [*prompt, *stream.result.tokens]
        for played in rounds:
            _count(found, played, ngrams, text)
        progress(number + 1, len(questions))
    return found


def _count(found: Evaluation, played: RoundTrace, ngrams: SuffixDrafter, text: Sequence[int]) -> None:
    found.n_rounds += 1
    found.n_tokens += len(played.tokens)
    proposal = played.proposal
    if not proposal.tokens:
        return
    found.n_drafted += len(proposal.tokens)
    found.draft_s += played.draft_s
    for place, (guess, token) in enumerate(zip(proposal.tokens, played.tokens, strict=False)):
        right = guess == token
        found.by_place[place].add(right)
        if place == 0:
            found.by_confidence[sum(proposal.confidence[0] > bound for bound in BOUNDS)].add(right)
            if not ngrams.propose(text[: played.position], 1).tokens:
                found.beyond_ngrams.add(right)
        if not right:
            return
