"""The fields of an object in OpenAI's notation, read strictly: what nobody knows is refused, not left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from edgespec.errors import FieldError

_LONGEST_SHOWN = 60


class Fields:
    """The fields of a JSON object, taken one by one. What is null counts as not there; what nobody takes is refused."""

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        """`where` is the path to the object, for errors."""
        self.where = where
        self._left = {name: value for name, value in values.items() if value is not None}

    def path(self, name: str) -> str:
        """The path of a field, for errors."""
        return f"{self.where}.{name}" if self.where else name

    def names(self) -> list[str]:
        """The fields that nobody has taken."""
        return list(self._left)

    def take(self, name: str) -> object:
        """A field's value as it is; None where it is not there."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """A text.

        Raises:
            FieldError: it is something else. So do the methods below.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def needed_text(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if value is None:
            raise FieldError(f"{self.path(name)} is missing", self.path(name))
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return default if value is None else value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number of a range."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}", value)
        return value

    def listed(self, name: str, n_max: int) -> list[object] | None:
        """A list of at most `n_max` items."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        if len(value) > n_max:
            raise FieldError(f"{self.path(name)} has {len(value)} items, at most {n_max} are taken", self.path(name))
        return value

    def inner(self, name: str) -> Fields | None:
        """An object."""
        value = self.take(name)
        return None if value is None else self.as_fields(name, value)

    def as_fields(self, name: str, value: object) -> Fields:
        """A value found under `name` as an object."""
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, self.path(name))

    def drop(self, names: Sequence[str]) -> tuple[str, ...]:
        """Leave out fields that say nothing about the text; those of `names` that were there."""
        return tuple(name for name in names if self.take(name) is not None)

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            FieldError: naming it.
        """
        if self._left:
            name = min(self._left)
            path = self.path(name)[:_LONGEST_SHOWN]
            raise FieldError(f"{path} is not a field that is known here: leave it out", path)

    def _wrong(self, name: str, wanted: str, value: object) -> FieldError:
        return FieldError(f"{self.path(name)} must be {wanted}, not {shown(value)}", self.path(name))


def shown(value: object) -> str:
    """What was sent, for an error: short, and of lists and objects the kind only."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
