"""Which drafters serve the sessions of an engine: by name or as objects, fitted to the target, kept on their cores."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from edgespec.core.controller import Controller
from edgespec.core.drafting import Drafting
from edgespec.core.offers import FittedDrafter, TargetFacts
from edgespec.core.session import Session
from edgespec.draft import AUTO, PACKAGED, REGISTRY, STORED, package, plugins, store
from edgespec.draft.isolated import IsolatedDrafter
from edgespec.errors import DrafterError, EdgespecError
from edgespec.interfaces import Drafter
from edgespec.machine import DrafterPin, Machine
from edgespec.target.llama import LlamaTarget


@dataclass(slots=True)
class Tools:
    """What a session drafts with: drafters by name, controllers by temperature."""

    draftings: dict[str, Drafting] = field(default_factory=dict)
    pins: dict[str, DrafterPin | None] = field(default_factory=dict)
    controllers: dict[float, Controller] = field(default_factory=dict)
    latest: str = ""
    """The drafter in use."""
    learned: tuple[int, ...] = ()
    """The text as it was last taken into the store."""


class Drafters:
    """The drafters of all sessions. One that cannot serve this target is left out, and `notes` say why."""

    def __init__(self, target: LlamaTarget, machine: Machine) -> None:
        self.notes: list[str] = []
        self._target = target
        self._machine = machine
        self._tools: dict[Session, Tools] = {}
        self._learner: store.Learner | None = None
        self._remembered = False
        self._kept: dict[str, Drafter] = {}
        """By name, one that was fitted, so that what they share stays loaded."""
        self._refused: set[str] = set()

    def tools(self, session: Session) -> Tools:
        """What a session drafts with."""
        return self._tools.setdefault(session, Tools())

    def pin(self, session: Session) -> DrafterPin | None:
        """The cores of the drafter in use, where it has a thread of its own."""
        tools = self._tools.get(session)
        return tools.pins.get(tools.latest) if tools is not None else None

    def prepare(self, wanted: str, usual: str) -> None:
        """Load what the first answer would wait for, and note why it cannot be used."""
        if wanted == PACKAGED or (wanted == "auto" and usual == AUTO and self._chosen):
            self._make(PACKAGED)

    def serve(self, session: Session, wanted: str | Drafter, usual: str) -> tuple[Drafting, list[Drafting]]:
        """The drafter that was `wanted`, and those for where it has nothing; "auto" stands for the `usual` one."""
        tools = self.tools(session)
        others: list[Drafting | None] = []
        if wanted == "auto":
            wanted = usual
            if usual == AUTO:
                others.append(self._drafting(tools, STORED) if self._remembers() else None)
                others.append(self._drafting(tools, PACKAGED) if self._chosen else None)
        drafting = self._drafting(tools, wanted)
        if drafting is None:
            wanted = AUTO
            drafting = self._drafting(tools, wanted)
        assert drafting is not None
        tools.latest = self._key(wanted)
        return drafting, [other for other in others if other is not None]

    def learn(self, session: Session) -> None:
        """Take what is new in a session's text into the store."""
        tools, text = self.tools(session), tuple(session.tokens)
        if self._learner is None:
            self._learner = store.Learner(self._facts)
        self._learner.learn(text, tools.learned)
        tools.learned = text
        for note in self._learner.notes:
            self._note(note)

    def release(self, session: Session) -> None:
        """Close a session's drafters."""
        tools = self._tools.pop(session, None)
        for drafting in tools.draftings.values() if tools else ():
            drafting.close()

    def close(self) -> None:
        """Close all drafters."""
        for session in list(self._tools):
            self.release(session)
        self._kept.clear()
        if self._learner is not None:
            self._learner.close()

    @staticmethod
    def _key(wanted: str | Drafter) -> str:
        return wanted if isinstance(wanted, str) else f"{wanted.name}@{id(wanted):x}"

    def _drafting(self, tools: Tools, wanted: str | Drafter) -> Drafting | None:
        key = self._key(wanted)
        if key not in tools.draftings:
            made = self._make(wanted)
            if made is None:
                return None
            tools.pins[key] = None
            if not _is_ours(wanted) and not getattr(made, "inline", False):
                pin = tools.pins[key] = self._machine.drafter_pin()
                made = IsolatedDrafter(made, settle=pin, owned=isinstance(wanted, str))
            tools.draftings[key] = Drafting(made, self._target.n_vocab)
        return tools.draftings[key]

    def _make(self, wanted: str | Drafter) -> Drafter | None:
        """A drafter that can serve this target, else None."""
        if isinstance(wanted, str):
            if wanted in self._refused:
                return None
            try:
                factory = REGISTRY.get(wanted) or functools.partial(plugins.make, wanted)
                made = factory(self._target.piece)
            except DrafterError as error:
                self._note(f"the drafter {wanted} is left out: {error}")
                self._refused.add(wanted)
                return None
        else:
            made = wanted
        if not _is_ours(wanted) and not getattr(made, "inline", False):
            return made  # it is asked nothing on this thread
        if isinstance(made, FittedDrafter):
            try:
                note = made.fit(self._facts)
            except DrafterError as error:
                self._note(f"the drafter {made.name} is left out: {error}")
                if isinstance(wanted, str):
                    self._refused.add(wanted)
                return None
            if isinstance(wanted, str):
                self._kept.setdefault(wanted, made)
            if note is not None:
                self._note(note)
        return made

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    @property
    def _chosen(self) -> bool:
        """Whether a package is in use; looked up at every answer."""
        try:
            return package.in_use() is not None
        except DrafterError as error:
            self._note(str(error))
            return False

    @functools.cached_property
    def _facts(self) -> TargetFacts:
        return facts_of(self._target)

    def _remembers(self) -> bool:
        """Whether there is something in the store of this tokenizer; once there is, its drafter sees to it."""
        if not self._remembered:
            try:
                found = store.open_store(self._facts)
            except (EdgespecError, OSError) as error:
                self._note(str(error))
                return False
            if found is not None:
                found.close()
                self._remembered = True
        return self._remembered


def _is_ours(wanted: str | Drafter) -> bool:
    return isinstance(wanted, str) and wanted in REGISTRY


def facts_of(target: LlamaTarget) -> TargetFacts:
    """What drafters that are made for certain targets are told of this one; its hashes are computed once."""
    digest = functools.cache(target.vocab.digest)
    return TargetFacts(target.name, target.n_vocab, target.n_hidden, target.info.trained, digest)
