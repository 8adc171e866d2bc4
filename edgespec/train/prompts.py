"""Prompts for the target to answer: by number, each a function of the seed and its number alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.interfaces import Message
from edgespec.train import topics
from edgespec.train.passages import Kind, Passage, Passages

GROUPS = ("chat", "qa", "maths", "code", "summary", "rag", "translation", "foreign")
_HELD_OUT = 16
"""One in so many sources is held out: measured on, never trained on."""
_ASKED = 0.45
"""Share of the questions that the model writes itself: they are like those that it was trained to answer.

Source: Xu et al. 2024 (2406.08464, "Magpie").
"""
_LONGEST_ANSWER = 256
_PASSAGE = (250, 400, 600, 1200)
"""Characters of a passage in a prompt. A prompt's tokens cost nearly what an answer's do and teach nothing."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to ask, how, and how long the answer may be."""

    number: int
    group: str
    source: str
    """What it is made of: held out or trained on as a whole."""
    system: str | None
    user: str
    asked: bool
    """`user` is only how the question begins; the model is to write the rest itself."""
    follow_up: str | None
    temperature: float
    max_tokens: int

    @property
    def held_out(self) -> bool:
        """Whether it is measured on instead of trained on."""
        return is_held_out(self.source)

    @property
    def messages(self) -> list[Message]:
        """The conversation up to the first answer."""
        return [*([Message("system", self.system)] if self.system else []), Message("user", self.user)]


def is_held_out(source: str) -> bool:
    """Whether prompts of this source are measured on instead of trained on; a file is one source, a topic is one."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest()[0] % _HELD_OUT == 0


class Prompts:
    """Makes prompts. `shares` are the weights of the groups; groups that lack passages here fall to the others."""

    def __init__(self, passages: Passages, seed: int) -> None:
        self._passages = passages
        self._seed = seed
        has = passages.has
        prose: tuple[Kind, ...] = tuple(kind for kind in ("prose", "own") if has(kind))
        self._makers: list[tuple[float, Callable[[random.Random, int], tuple[str, str, str] | None]]] = [
            (0.28, self._chat), (0.14, self._question), (0.14, self._maths), (0.06, self._code), (0.03, self._foreign),
        ]  # fmt: skip
        if prose:
            for group, share in (("summary", 0.09), ("rag", 0.08), ("chat", 0.04), ("translation", 0.02)):
                self._makers.append((share, lambda rng, at, group=group: self._on_prose(group, prose, rng, at)))  # type: ignore[misc]  # mypy cannot see the default
        if has("code"):
            self._makers.append((0.05, self._on_code))
        if has("foreign"):
            self._makers.append((0.08, self._on_foreign))
        if has("own"):
            self._makers.append((0.5, self._own))

    def make(self, number: int) -> Prompt | None:
        """The prompt with this number; None where its passage turns out to be none."""
        rng = random.Random(f"{self._seed} {number}")
        temperature = 0.0 if rng.random() < 0.45 else round(rng.uniform(0.3, 1.0), 2)
        system = rng.choice(topics.SYSTEMS) if rng.random() < 0.2 else None
        max_tokens = rng.choice((96, 128, 192, _LONGEST_ANSWER))
        follow_up = self._fill(rng.choice(topics.FOLLOW_UPS), rng) if rng.random() < 0.15 else None
        if rng.random() < _ASKED:
            opening = rng.choice(topics.OPENINGS)
            return Prompt(number, "chat", f"asked {number}", system, opening, True, follow_up, temperature, max_tokens)
        weights, makers = zip(*self._makers, strict=True)
        made = rng.choices(makers, weights)[0](rng, number)
        if made is None:
            return None
        group, source, text = made
        return Prompt(number, group, source, system, text, False, follow_up, temperature, max_tokens)

    def _fill(self, template: str, rng: random.Random, **more: str) -> str:
        return template.format_map(_values(rng) | more)

    def _topical(self, group: str, templates: tuple[str, ...], rng: random.Random) -> tuple[str, str, str]:
        values = _values(rng)
        return group, f"topic {values['t']}", rng.choice(templates).format_map(values)

    def _chat(self, rng: random.Random, _: int) -> tuple[str, str, str]:
        return self._topical("chat", topics.CHAT, rng)

    def _question(self, rng: random.Random, _: int) -> tuple[str, str, str]:
        values = _values(rng)
        template = rng.choice(topics.QUESTIONS)
        about = next(key for key in "tpc" if f"{{{key}}}" in template)
        return "qa", f"topic {values[about]}", template.format_map(values)

    def _maths(self, rng: random.Random, _: int) -> tuple[str, str, str]:
        text = self._fill(rng.choice(topics.MATHS), rng)
        return "maths", f"maths {text}", text

    def _code(self, rng: random.Random, _: int) -> tuple[str, str, str]:
        text = self._fill(rng.choice(topics.CODE), rng, l=rng.choice(topics.CODE_LANGUAGES))
        return "code", f"code {text}", text

    def _foreign(self, rng: random.Random, _: int) -> tuple[str, str, str]:
        return self._topical("foreign", rng.choice(list(topics.FOREIGN.values())), rng)

    def _on_prose(
        self, group: str, kinds: tuple[Kind, ...], rng: random.Random, number: int
    ) -> tuple[str, str, str] | None:
        found = self._passages.draw(rng.choice(kinds), number)
        other = self._passages.draw(rng.choice(kinds), number + 1)
        if found is None:
            return None
        if other is None or is_held_out(other.source) != is_held_out(found.source):
            other = found
        text = _short(found, rng) if group == "translation" else _cut(found.text, rng)
        more = {"x": text, "y": _cut(other.text, rng), "q": rng.choice(topics.ABOUT)}
        return group, found.source, self._fill(rng.choice(topics.ON_PROSE[group]), rng, **more)

    def _on_code(self, rng: random.Random, number: int) -> tuple[str, str, str] | None:
        found = self._passages.draw("code", number)
        return (
            None
            if found is None
            else ("code", found.source, rng.choice(topics.ON_CODE).format(x=_cut(found.text, rng)))
        )

    def _on_foreign(self, rng: random.Random, number: int) -> tuple[str, str, str] | None:
        found = self._passages.draw("foreign", number)
        if found is None:
            return None
        language = topics.LANGUAGES.get(found.language, "foreign")
        text = rng.choice(topics.ON_FOREIGN).format_map({"x": _short(found, rng), "l": language})
        return "translation", found.source, text

    def _own(self, _: random.Random, number: int) -> tuple[str, str, str] | None:
        """What the user asked once, as it is."""
        found = self._passages.draw("own", number)
        return None if found is None else ("chat", found.source, found.text)


def _values(rng: random.Random) -> dict[str, str]:
    """What stands for the letters in a template."""
    first, second = (rng.choice(topics.SUBJECTS) if rng.random() < 0.5 else rng.choice(topics.things()) for _ in "tu")
    name, other = rng.sample(topics.NAMES, 2)
    numbers = {"a": rng.randint(20, 99), "b": rng.randint(3, 19), "d": rng.randint(2, 9), "e": rng.randint(2, 6)}
    return {
        "t": first, "u": second, "n": name, "m": other, "p": rng.choice(topics.places()),
        "c": rng.choice(topics.COUNTRIES), "l": rng.choice(topics.CODE_LANGUAGES),
        **{key: str(value) for key, value in numbers.items()},
    }  # fmt: skip


def _short(found: Passage, rng: random.Random) -> str:
    """One or a few sentences of a passage."""
    sentences = found.text.replace("\n", " ").split(". ")
    first = rng.randrange(len(sentences))
    return ". ".join(sentences[first : first + rng.choice((1, 1, 2, 3))])[:300]


def _cut(text: str, rng: random.Random) -> str:
    """The beginning of a passage, up to the end of a line or sentence where there is one."""
    most = rng.choice(_PASSAGE)
    if len(text) <= most:
        return text
    end = max(text.rfind(mark, most // 2, most) for mark in ("\n", ". "))
    return text[: end + 1 if end > 0 else most].rstrip()
