"""JSON as it comes in and goes out: strict about what is read, plain about what is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from edgespec.fields import Fields
from edgespec.server.errors import invalid


def parse(data: bytes) -> Fields:
    """The JSON object of a request's body.

    Raises:
        RequestError: 400; not UTF-8, not JSON, no object, numbers that JSON has not, or half of a character.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}") from None
    try:
        found = json.loads(text, parse_constant=_no_number)
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error.msg} at offset {error.pos}") from None
    except UnicodeEncodeError:
        raise invalid(r"the body holds half of a surrogate pair (\ud800 to \udfff): write both halves") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except ValueError as error:  # NaN and its like, and whole numbers of more than 4300 digits
        raise invalid(f"the body is not JSON: {str(error).split(';')[0]}") from None
    if not isinstance(found, dict):
        raise invalid("the body must be a JSON object")
    return Fields(found)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def encode(body: object) -> bytes:
    """JSON in UTF-8; numbers that are not finite become null, keys become strings."""
    return json.dumps(_plain(body), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "replace"
    )


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)
