"""Reads what is typed: line editing, history, pasted text, messages of several lines.

Knows nothing of chats. A pasted text of several lines is one message (bracketed paste).
"""

from __future__ import annotations

import importlib
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, NoReturn, Protocol

PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
_PASTE_GAP_S = 0.02

Complete = Callable[[str], Sequence[str]]
"""From the text before the cursor to what it may become, whole."""


class Reader(Protocol):
    """Where lines come from."""

    had_text: bool
    """Whether something had been typed when Ctrl-C came."""

    def read(self, prompt: str) -> str:
        """One line (or one pasted text) without its end.

        Raises:
            EOFError: Ctrl-D, or nothing more comes.
            KeyboardInterrupt: Ctrl-C.
        """
        ...

    def add(self, text: str) -> None:
        """Make a text reachable with the arrow keys."""
        ...


class PlainReader:
    """Without line editing: prompts go to stderr, the terminal edits. Understands pasted text by its marks."""

    def __init__(self) -> None:
        self.had_text = False
        self._marks = sys.stdin.isatty() and sys.stderr.isatty()

    def read(self, prompt: str) -> str:
        """See `Reader.read`."""
        _say(prompt + (_PASTE_ON if self._marks else ""))
        try:
            text = _line()
            with suppress(EOFError):  # what was pasted so far counts
                while _PASTE_BEGINS in text and _PASTE_ENDS not in text:
                    text += "\n" + _line()
        finally:
            _say(_PASTE_OFF if self._marks else "")
        return text.replace(_PASTE_BEGINS, "").replace(_PASTE_ENDS, "")

    def add(self, text: str) -> None:
        """There are no arrow keys."""


class ReadlineReader:
    """Line editing by the readline library that Python has."""

    def __init__(self, readline: ModuleType, past: Sequence[str], complete: Complete) -> None:
        self.had_text = False
        self._readline: Any = readline
        self._libedit = "libedit" in (readline.__doc__ or "")
        readline.set_auto_history(False)
        for text in past:
            readline.add_history(text)
        readline.set_completer_delims("")
        readline.set_completer(_completer(complete))
        if self._libedit:
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.parse_and_bind("tab: complete")

    def read(self, prompt: str) -> str:
        """See `Reader.read`."""

        def interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
            self.had_text = bool(self._readline.get_line_buffer())
            raise KeyboardInterrupt

        handler = signal.signal(signal.SIGINT, interrupted)
        try:
            text = input(prompt)
            while self._libedit and _more_comes():  # it has no bracketed paste, but pasted lines come all at once
                with suppress(EOFError):
                    text += "\n" + input()
        finally:
            signal.signal(signal.SIGINT, handler)
        return text

    def add(self, text: str) -> None:
        """See `Reader.add`."""
        self._readline.add_history(text)


class ToolkitReader:
    """Line editing by prompt_toolkit (extra `repl`)."""

    def __init__(self, toolkit: ModuleType, past: Sequence[str], complete: Complete) -> None:
        self.had_text = False
        completion = importlib.import_module("prompt_toolkit.completion")
        history = importlib.import_module("prompt_toolkit.history").InMemoryHistory(past)

        class Completer(completion.Completer):  # type: ignore[misc, name-defined]  # an optional library, untyped here
            def get_completions(self, document: Any, _event: object) -> Any:
                before = document.text_before_cursor
                for whole in complete(before):
                    yield completion.Completion(whole, start_position=-len(before))

        self._session: Any = toolkit.PromptSession(
            history=history, completer=Completer(), complete_while_typing=False, enable_history_search=False
        )

    def read(self, prompt: str) -> str:
        """See `Reader.read`."""
        try:
            text: str = self._session.prompt(prompt)
        except KeyboardInterrupt:
            self.had_text = bool(self._session.default_buffer.text)
            raise
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def add(self, text: str) -> None:
        """The session remembers what it read, line by line, by itself."""


def open_reader(past: Sequence[str], complete: Complete) -> Reader:
    """The best line editor there is for this terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return PlainReader()
    with suppress(ImportError):
        return ToolkitReader(importlib.import_module("prompt_toolkit"), past, complete)
    with suppress(ImportError):
        return ReadlineReader(importlib.import_module("readline"), past, complete)
    return PlainReader()


def read_message(reader: Reader) -> str:
    r"""One message: a line, lines continued with a backslash, or all between triple quotes.

    Ctrl-D ends a message of several lines; Ctrl-C drops it.

    Raises:
        EOFError: Ctrl-D before anything was typed.
        KeyboardInterrupt: Ctrl-C.
    """
    reader.had_text = False
    text = reader.read(PROMPT)
    body = text.lstrip()
    if body.startswith(QUOTES):
        return _quoted(reader, body[len(QUOTES) :])
    while _continued(text):
        text = text[:-1]
        try:
            text += "\n" + _more(reader)
        except EOFError:
            break
    return text


def _quoted(reader: Reader, text: str) -> str:
    while not text.rstrip().endswith(QUOTES):
        try:
            text += "\n" + _more(reader)
        except EOFError:
            return text.removeprefix("\n")
    return text.rstrip().removesuffix(QUOTES).removeprefix("\n").removesuffix("\n")


def _more(reader: Reader) -> str:
    try:
        return reader.read(MORE)
    except KeyboardInterrupt:
        reader.had_text = True
        raise


def _continued(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _more_comes() -> bool:
    return bool(select.select([sys.stdin], [], [], _PASTE_GAP_S)[0])


def _completer(complete: Complete) -> Callable[[str, int], str | None]:
    def candidate(text: str, number: int) -> str | None:
        found = complete(text)
        return found[number] if number < len(found) else None

    return candidate
