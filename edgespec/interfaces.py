"""Protocols and frozen dataclasses shared by all parts. No logic lives here.

Vocabulary of the field: a *drafter* guesses tokens, the *target* verifies them in one batch; a *round* is one
such batch. `n_` counts, `_s` seconds, `_c` degrees Celsius. A *row* is one line of logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from edgespec.conditions import TeamChange

Row = npt.NDArray[np.float32]
"""Logits of one position: (n_vocab,) float32. A view: valid until the target's next `eval`."""
Rows = npt.NDArray[np.float32]
"""Logits of several positions: (n_rows, n_vocab) float32. A view: valid until the target's next `eval`."""

FinishReason = Literal["stop", "length", "cancelled"]
Rollback = Literal["removal", "snapshots", "replay"]
"""How rejected tokens leave the cache. removal: one by one. snapshots: back to a state kept for each of the last
tokens. replay: back to the state of before the pass; accepted tokens are evaluated again in front of the next one."""
ROOT = -1
"""Parent of a draft token that directly follows the committed text."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens, parents before children; a chain has `parents == (-1, 0, 1, ...)`.

    All four tuples have the same length n. `strength` is a small class (0..63) by which acceptance is learned,
    meaningful only within one drafter (for n-grams: match length and agreement). `confidence` is the drafter's own
    estimate, in 0..1, that a token is right given its parent is right: the prior until experience replaces it.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    strength: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()


NO_DRAFT = Draft()


@runtime_checkable
class Drafter(Protocol):
    """Guesses how a text goes on. One instance serves one session; it may keep state about that session's text."""

    name: str

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """Return at most `limit` tokens that may follow `context`.

        `context` is the session's whole text so far, newest token last; the drafter must not change it. The answer is
        a function of the whole context: between two calls it may have grown, shrunk or become another. A list that
        is handed over again, the same object, has only grown.
        """
        ...

    def close(self) -> None:
        """Free what the drafter holds. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What one sequence contributes to a batch: pending tokens (a chain), then the nodes of a draft.

    Logits are returned for the last pending token and for every draft token when `rows` is true, else none.
    """

    seq_id: int
    n_past: int
    """Tokens of this sequence already in the KV cache; the position of the first pending token."""
    pending: Sequence[int]
    draft: Draft = NO_DRAFT
    rows: bool = True
    hidden: bool = False
    """Whether the hidden states behind the rows will be asked for (`core.offers.HiddenTarget`)."""

    @property
    def n_tokens(self) -> int:
        """Tokens this plan adds to the batch."""
        return len(self.pending) + len(self.draft.tokens)

    @property
    def n_rows(self) -> int:
        """Rows of logits this plan asks for."""
        return 1 + len(self.draft.tokens) if self.rows else 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the target's memory allows; the round obeys it."""

    sessions_per_batch: int = 1
    tree: bool = False
    """Whether a draft may branch."""
    max_rollback: int | None = None
    """How many tokens of the last batch can be taken back; None: any number. 0 forbids drafting."""
    rollback: Rollback | None = "removal"
    """How they are taken back; None: they cannot be."""
    rewind: bool = True
    """Whether cached tokens of earlier batches can be dropped one by one (prefix reuse)."""
    off_reason: str | None = None
    """Why drafting is impossible, when `max_rollback` is 0."""
    exact_widths: frozenset[int] | None = None
    """Widths of a batch that give the logits of single rows, to keep to; None: any width may be used."""
    exact_n_ctx: int | None = None
    """Tokens of a text up to which that is certified; None: no limit."""
    exact_only: bool = True
    """Whether nothing is drafted beyond; else drafts have any width there, and the text is not claimed to be exact."""

    def exact_at(self, n_tokens: int) -> frozenset[int] | None:
        """Widths to keep to where a text has `n_tokens` tokens; None: any."""
        free = self.exact_n_ctx is not None and n_tokens >= self.exact_n_ctx and not self.exact_only
        return None if free else self.exact_widths


@runtime_checkable
class DrawingDrafter(Drafter, Protocol):
    """A drafter with a distribution of its own, which may draw its guesses as the target draws its tokens.

    The target's noise belongs to seed, position and token. Drawn with the same noise, two similar distributions agree
    more often than two independent draws do, and more often than the likeliest guess does: above temperature 0 more
    guesses are right, and the text stays as it is. `core.sampling.Sampler(sampling, context).sample(row, position)` is
    such a draw; `position` is the number of tokens before it.
    """

    def draw_as(self, sampling: Sampling) -> None:
        """How the tokens of the text are drawn from now on; called when an answer begins."""
        ...


class Target(Protocol):
    """The model that decides the text: a KV cache per sequence and a forward pass."""

    n_vocab: int
    n_ctx: int
    """Tokens that fit the whole cache."""
    n_batch: int
    """Most tokens of one `eval`."""
    n_rows_max: int
    """Most rows of logits of one `eval`."""
    eog: frozenset[int]
    """Token ids that end a generation: eos, eot, eom and the like."""
    capabilities: Capabilities

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """Run one batch; return per plan `(plan.n_rows, n_vocab)` rows, valid until the next `eval`.

        Row 0 follows the last pending token, row 1 + i follows draft node i.

        Raises:
            EvalCancelled: the abort flag was raised; nothing of this batch stays in the cache.
            EvalError: the batch was refused; nothing of it stays in the cache.
        """
        ...

    def retain(self, seq_id: int, n_keep: int, path: Sequence[int] = ()) -> bool:
        """Keep the first `n_keep` cached tokens of a sequence and, of its last draft, the nodes in `path`.

        `path` is in order from the root, as indices into the last plan's draft. Everything else of the sequence
        leaves the cache. Returns False where the memory cannot do it: the sequence must then `fall_back` or be cleared.
        """
        ...

    def fall_back(self, seq_id: int, n_keep: int) -> int:
        """Return to the latest state that was kept of at most the first `n_keep` tokens; give the tokens it holds.

        0: none was kept, and the sequence is empty now. With `rollback` "replay" a state is kept before every draft.
        """
        ...

    def clear(self, seq_id: int) -> None:
        """Empty one sequence's cache."""
        ...

    def abort(self) -> None:
        """Make the running (or the next) `eval` raise EvalCancelled. Callable from any thread or signal handler."""
        ...

    def resume(self) -> None:
        """Lower the abort flag."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back; ids outside the vocabulary are the caller's fault."""

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`. `special` parses control tokens written in it; `bos` adds the model's start token."""
        ...

    def piece(self, token: int) -> bytes:
        """Bytes of one token as shown to a reader; control tokens give b''."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from a row. The defaults draw greedily; neutral values switch a step off.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, draw (llama.cpp's
    order). Mirostat takes the place of the cut-offs from top-n-sigma to XTC and comes after the temperature.
    """

    temperature: float = 0.0
    """0 is greedy, whatever the cut-offs say; otherwise > 0."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    """Keep logits within so many standard deviations of the best; 0 keeps all."""
    min_keep: int = 0
    """Tokens that typical, top-p, min-p and XTC leave at least."""
    xtc_probability: float = 0.0
    """How often XTC leaves out the likeliest tokens, 0..1."""
    xtc_threshold: float = 0.1
    """XTC leaves out the tokens at least this likely, but for the least likely of them; above 0.5 it is off."""
    dynatemp_range: float = 0.0
    """How far the temperature goes down and up with the entropy of what is left; 0: it is fixed."""
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    """1 or 2: that version of mirostat; 0: off."""
    mirostat_tau: float = 5.0
    """The surprise that mirostat aims at, in bits."""
    mirostat_eta: float = 0.1
    """How fast mirostat learns."""
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    """How many newest tokens (prompt included) the penalties look at; -1: all."""
    dry_multiplier: float = 0.0
    """Taken from the logit of a token that would prolong a repetition; 0: DRY is off."""
    dry_base: float = 1.75
    """Factor of that with each token by which the repetition is longer than allowed; at least 1."""
    dry_allowed_length: int = 2
    """Tokens that may be repeated for nothing, at least 1."""
    dry_penalty_last_n: int = 64
    """How many newest tokens (prompt included) DRY looks at; -1: all."""
    dry_breakers: tuple[tuple[int, ...], ...] | None = None
    """Token sequences over which no repetition reaches. None: the engine takes the tokens with a line end, colon,
    quotation mark or asterisk."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    attempt: int = 0
    """Counts retries of the same prompt: another attempt draws other noise."""
    logprobs: int | None = None
    """How many of the likeliest tokens each token's log-probability comes with, 0..20; None: none are computed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a generation ends, and what it may try."""

    max_tokens: int | None = None
    """None: until the context is full."""
    stop: tuple[str, ...] = ()
    max_draft: int = 15
    """Longest draft of one round; 0 switches drafting off."""
    fixed_draft: int | None = None
    """For benchmarks: always ask for this many tokens instead of letting the controller choose."""
    ignore_eog: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts in OpenAI's terms; `cached_tokens` of the prompt were already in the KV cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a generation did. None means unknown, never zero. Times in seconds."""

    drafter: str
    """The drafter really used ("none" where drafting was off)."""
    drafter_off_reason: str | None
    rounds: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]
    """How many drafts had their first, second, ... token accepted."""
    tokens_per_round: float | None
    widths: Mapping[int, int]
    """Verify width (1 + drafted) to rounds of that width."""
    prefill_s: float
    ttft_s: float | None
    """From the request to the first committed token; None where none was."""
    decode_s: float
    """From the first committed token to the last."""
    draft_s: float
    verify_s: float
    tok_s: float | None
    """Tokens after the first, by decode_s."""
    saved_s: float | None
    """Decode time saved against plain decoding, by the ledger; negative where drafting lost."""
    load_s: float | None = None
    threads: int | None = None
    """Threads of a pass of one token at the end."""
    threads_wide: int | None = None
    cpus_target: tuple[int, ...] | None = None
    """Cores that the target's threads may run on, as the system says."""
    cpus_drafter: tuple[int, ...] | None = None
    """Cores that the drafter may run on, as the system says; the target's where it runs between the passes."""
    team_changes: tuple[TeamChange, ...] = ()
    """What heat, other programs or the system did to the team during this answer."""
    policy: str | None = None
    heat: Mapping[str, object] | None = None
    """`headroom`, `temp_c`, `source`, `throttled`, `freq_cap`, `battery`, `on_mains`, and `limits` in plain words."""
    rss_bytes: int | None = None
    exact: bool = False
    """Whether the text is certified to be that of plain decoding, token for token."""
    exact_why: str | None = None
    """By which recipe, or why not."""
    rollback: Rollback | None = None
    """How this model's memory takes rejected tokens back; None: it cannot."""
    tuned: str | None = None
    """Which options `edgespec tune` had chosen, and how; None: none."""
    kernels: str | None = None
    """Whether edgespec's kernels computed passes of few rows: "on: " and which, or "off: " and why."""
    notes: tuple[str, ...] = ()
    """What was asked for and not done, and what the user should know, one line each."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model itself held a token: natural logarithms, before bias, penalties, cut-offs and temperature.

    Source: OpenAI's `logprobs` and `top_logprobs`.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at that position and their log-probabilities, likeliest first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer as it streams: text (may be empty), the tokens behind it, how many were drafted."""

    text: str
    tokens: tuple[int, ...]
    n_from_draft: int
    """The first so many of the tokens were guessed; the target accepted them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token where they were asked for, else none."""
    n_drafted: int = 0
    """Tokens that were guessed for the pass behind this piece, right or wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer. `tokens` ends with the token that ended it; `text` stops before a stop string."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    report: Report
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token where they were asked for, else none."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Template(Protocol):
    """Renders a conversation into the text the model was trained on."""

    name: str
    """"gguf" for the model's own, else the name of the fallback that is used and reported."""

    def render(self, messages: Iterable[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt text; control tokens are written out and parsed by the tokenizer."""
        ...
