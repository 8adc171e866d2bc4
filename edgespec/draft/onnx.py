"""The drafter that a package holds: a tiny model that rolls out a few tokens in one call, each with its confidence.

The only file that imports onnxruntime; where that is missing or does not work, numpy computes the same graph.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import weakref
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgespec.core.controller import chain_parents
from edgespec.core.offers import Hidden, TargetFacts
from edgespec.draft import package
from edgespec.draft.numpy_eval import NumpyRunner
from edgespec.draft.onnx_file import Array
from edgespec.draft.package import Card, Package
from edgespec.errors import DrafterError
from edgespec.interfaces import NO_DRAFT, Draft

NAME = "onnx"
ENGINES = ("onnxruntime", "numpy")
_BINS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Upper bounds of the classes of confidence. What a class is worth is learned while drafting, from this text and from
all before it: a tiny model is overconfident in the middle, and differently at temperature."""
_N_PLACES = 4
"""Places in the draft that have classes of their own: the first token, the second, the third, all later ones."""
_MAX_FAULTS = 3
_SLACK = 1e-3
"""How far above 1 rounding may put a probability."""


class Runner(Protocol):
    """Computes a graph, on the calling thread."""

    name: str

    def run(self, feeds: Mapping[str, Array]) -> tuple[Array, Array]:
        """The outputs `draft` and `confidence`."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A package's card and what computes its graph. Shared by sessions and threads."""

    card: Card
    runner: Runner
    ids: tuple[int, ...] | None
    """The target's ids by those of the graph; None: they are the same."""
    numbers: Mapping[int, int] | None
    """The other way round."""
    note: str | None
    """Why not onnxruntime computes it."""

    @property
    def n_known(self) -> int:
        """Ids of the graph that stand for a token."""
        return self.card.n_vocab if self.ids is None else len(self.ids)

    def number(self, token: int) -> int:
        """The graph's id of a token; -1: it has none."""
        unknown = -1 if self.card.unknown is None else self.card.unknown
        if self.numbers is None:
            return token if token < self.card.n_vocab else unknown
        return self.numbers.get(token, unknown)


_shared: weakref.WeakValueDictionary[tuple[str, str, str], Loaded] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def load(folder: Path, target: TargetFacts | None = None, engine: str | None = None) -> Loaded:
    """A package ready to draft for a target; one that is loaded already is shared.

    Args:
        folder: of the package.
        target: None: for none in particular.
        engine: "onnxruntime" or "numpy"; None: the first that works.

    Raises:
        DrafterError: it cannot be used, in one line that names it.
    """
    card = package.read_card(folder)
    why = package.why_unfit(card, target) if target is not None else None
    if why is not None:
        raise DrafterError(f"{card.name}: {why}")
    with _sharing:
        key = (str(folder.resolve()), repr(card), engine or "")
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = _load(package.load(folder), engine)
        return found


def _load(found: Package, engine: str | None) -> Loaded:
    note = None
    runner: Runner | None = None
    try:
        if engine != "numpy":
            try:
                runner = _OnnxRunner(found)
            except _UnusableError as error:
                if engine is not None:
                    raise
                note = f"{found.card.name} is computed by numpy, which takes longer: {error}"
        runner = runner or NumpyRunner(found.graph)
        _try(found, runner)
    except DrafterError as error:
        raise DrafterError(f"{found.card.name}: {error}" + (f" ({note})" if note else "")) from error
    ids = None if found.ids is None else tuple(found.ids.tolist())
    numbers = None if ids is None else {token: number for number, token in enumerate(ids)}
    return Loaded(found.card, runner, ids, numbers, note)


def _try(found: Package, runner: Runner) -> None:
    """One call, so that a graph which cannot be computed is refused now and not in the middle of an answer."""
    card = found.card
    for number in {card.pad, card.pad if card.unknown is None else card.unknown}:
        feeds: dict[str, Array] = {"tokens": np.full((1, card.n_tokens), number, np.int64)}
        if card.kind == "hidden":
            feeds["hidden"] = np.full((1, card.n_hidden), 0.01, np.float32)
        try:
            draft, confidence = runner.run(feeds)
            shapes = draft.shape, confidence.shape
        except DrafterError:
            raise
        except Exception as error:  # what a library raises about a graph is not listed anywhere
            raise DrafterError(f"{runner.name} cannot compute its graph ({_first_line(error)})") from error
        if shapes != ((card.n_draft,), (card.n_draft,)) or draft.dtype != np.int64 or confidence.dtype != np.float32:
            raise DrafterError(f"its graph gives {shapes[0]} {draft.dtype} and {shapes[1]} {confidence.dtype}, "
                               f"not {card.n_draft} int64 and as many float32")  # fmt: skip


class _UnusableError(DrafterError):
    """onnxruntime is not there or does not work."""


class _OnnxRunner:
    """onnxruntime on the calling thread alone: no pool, nothing that spins between calls."""

    name = "onnxruntime"

    def __init__(self, found: Package) -> None:
        ort = _import()
        try:
            options = ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
            options.log_severity_level = 4  # what is wrong is raised, and belongs on no terminal
            for kind in ("intra_op", "inter_op"):
                options.add_session_config_entry(f"session.{kind}.allow_spinning", "0")
        except Exception as error:  # a broken installation fails in any way
            raise _UnusableError(f"onnxruntime does not work ({_first_line(error)})") from error
        try:
            self._session = ort.InferenceSession(str(found.graph_path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no base
            raise DrafterError(f"onnxruntime {ort.__version__} refuses its graph ({_first_line(error)})") from error

    def run(self, feeds: Mapping[str, Array]) -> tuple[Array, Array]:
        draft, confidence = self._session.run(("draft", "confidence"), feeds)
        return draft, confidence


def _import() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read while it is imported
    said = io.StringIO()
    try:
        # A wheel built for another numpy prints pages before it fails.
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            import onnxruntime
    except ModuleNotFoundError as error:
        raise _UnusableError(f"{error.name or 'onnxruntime'} is not installed") from error
    except Exception as error:  # a broken installation fails in any way
        raise _UnusableError(f"onnxruntime does not work ({_first_line(error)})") from error
    return onnxruntime


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


class OnnxDrafter:
    """Drafts with a package; before it is given one it proposes nothing."""

    inline = True
    """One call takes well under a millisecond and cannot wait for anything."""
    dear = True
    """Its proposals take a time that shows: asked only while that pays."""

    def __init__(self, piece: Callable[[int], bytes] | None = None, loaded: Loaded | None = None) -> None:  # noqa: ARG002 - every drafter is offered `piece`
        """`loaded` is its package; without one `fit` takes the one in use."""
        self.name = NAME
        self._loaded: Loaded | None = None
        self._seen: tuple[Sequence[int], int] | None = None
        self._state: Array | None = None
        self._n_faults = 0
        if loaded is not None:
            self._take(loaded)

    def _take(self, loaded: Loaded) -> None:
        self._loaded = loaded
        # What is learned about one package says nothing of another.
        self.name = f"{NAME}:{loaded.card.name}"

    def fit(self, target: TargetFacts) -> str | None:
        """Take the package in use; a line for the user, if there is one.

        Raises:
            DrafterError: none is in use, or it cannot serve this target.
        """
        if self._loaded is None:
            name = package.in_use()
            if name is None:
                raise DrafterError("no drafter package is in use: `edgespec drafter use NAME` chooses one")
            self._take(load(package.find(name), target))
        assert self._loaded is not None
        why = package.why_unfit(self._loaded.card, target)
        if why is not None:
            raise DrafterError(f"{self._loaded.card.name}: {why}")
        return self._loaded.note

    @property
    def reads_hidden(self) -> bool:
        """Whether it wants to `observe`."""
        return self._loaded is not None and self._loaded.card.kind == "hidden"

    def observe(self, context: Sequence[int], hidden: Hidden) -> None:
        """Keep a copy of the target's state behind all but the newest token of `context`."""
        self._seen = context, len(context)
        self._state = hidden.reshape(1, -1).copy()

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """A chain of at most `limit` tokens of one call; nothing where the state behind `context` was not observed.

        Raises:
            DrafterError: the graph gave what is no draft, several times.
        """
        loaded = self._loaded
        if loaded is None or limit <= 0 or not context:
            return NO_DRAFT
        feeds = self._feeds(loaded, context)
        if feeds is None:
            return NO_DRAFT
        draft, confidence = loaded.runner.run(feeds)
        numbers, claims = draft.tolist(), confidence.tolist()
        known, unknown = loaded.n_known, loaded.card.unknown
        # Compared so that a value that is not a number fails.
        if not all(0 <= number < known or number == unknown for number in numbers) or not all(
            0.0 <= claim <= 1.0 + _SLACK for claim in claims
        ):
            self._n_faults += 1
            if self._n_faults >= _MAX_FAULTS:
                raise DrafterError(f"its graph gave ids or confidences out of range {self._n_faults} times")
            return NO_DRAFT
        n = min(limit, numbers.index(unknown) if unknown in numbers else len(numbers))
        if not n:
            return NO_DRAFT
        tokens = tuple(numbers[:n]) if loaded.ids is None else tuple(loaded.ids[number] for number in numbers[:n])
        claims = tuple(min(1.0, claim) for claim in claims[:n])
        strength = tuple(
            min(place, _N_PLACES - 1) * (len(_BINS) + 1) + bisect(_BINS, claim) for place, claim in enumerate(claims)
        )
        return Draft(tokens, chain_parents(n), strength, claims)

    def _feeds(self, loaded: Loaded, context: Sequence[int]) -> dict[str, Array] | None:
        """What the graph reads; None where that is not known."""
        card = loaded.card
        feeds: dict[str, Array] = {}
        if card.kind == "hidden":
            # The same list, no longer than it was: the text that was observed.
            if self._seen is None or self._seen[0] is not context or self._seen[1] != len(context):
                return None
            assert self._state is not None
            feeds["hidden"] = self._state
        newest = [loaded.number(token) for token in context[-card.n_tokens :]]
        if newest[-1] < 0:
            return None
        window = [card.pad] * (card.n_tokens - len(newest)) + [card.pad if n < 0 else n for n in newest]
        feeds["tokens"] = np.array((window,), np.int64)
        return feeds

    def close(self) -> None:
        """Let go of the package, which other sessions may still use."""
        self._loaded = self._state = self._seen = None
