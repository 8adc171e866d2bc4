"""The interactive chat: read a message, stream its answer, again."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.cli import commands
from edgespec.cli.commands import Desk
from edgespec.cli.common import check_text
from edgespec.cli.interrupt import INTERRUPTED, Interrupts, Presses
from edgespec.cli.render import columns, print_json, report_status, result_json, summary, without_thinking
from edgespec.errors import ContextFullError, EdgespecError

if TYPE_CHECKING:
    from edgespec.chat import Turn
    from edgespec.cli.history import History
    from edgespec.cli.lines import Reader

TWICE_S = 1.0
"""A second Ctrl-C within this time of the first quits."""


def answer(desk: Desk, start: Callable[[], Turn | None], *, json: bool = False, stats: bool = False) -> int:
    """Carry out what gives a turn and show its answer; return how often Ctrl-C was pressed.

    Raises:
        EdgespecError: it cannot be done, or the model failed; the conversation keeps what there was.
    """
    screen = desk.screen
    with Interrupts() as ctrl_c:
        turn = start()
        if turn is None:
            return ctrl_c.count
        ctrl_c.stops(turn.cancel)
        for note in turn.notes:
            screen.note(note)
        writer = None if json else screen.answer(opened=turn.thinking)
        try:
            for chunk in turn:
                if writer is not None:
                    writer.push(chunk.text)
        finally:
            if writer is not None:
                writer.finish(stopped=bool(ctrl_c.count))
        result = turn.result
        if json:
            hides = screen.think == "hide"
            print_json(result_json(without_thinking(result, opened=turn.thinking) if hides else result))
        if result.finish_reason == "cancelled":
            kept = "what was written stays in the conversation" if result.text else "/retry answers the message"
            screen.note(f"stopped; {kept}")
        elif result.finish_reason == "length":
            screen.note(f"cut off after {result.usage.completion_tokens} tokens")
        for line in summary(result) if stats else ():
            screen.line(line)
        screen.show_status(report_status(result.report, columns() - 1))
    return ctrl_c.count


class Repl:
    """Reads until /quit, Ctrl-D, or Ctrl-C twice; `run` returns the exit code."""

    def __init__(self, desk: Desk, reader: Reader, history: History, *, json: bool, stats: bool) -> None:
        self._desk = desk
        self._reader = reader
        self._history = history
        self._json = json
        self._stats = stats
        self._pressed_s = -TWICE_S
        self._told = False

    def run(self) -> int:
        """The chat; returns 0, or 130 where Ctrl-C ended it."""
        with Presses() as presses:
            return self._run(presses)

    def _run(self, presses: Presses) -> int:
        from edgespec.cli.lines import read_message

        screen = self._desk.screen
        while not self._desk.done:
            try:
                with presses.reading():
                    text = read_message(self._reader)
            except EOFError:
                screen.line()
                break
            except UnicodeDecodeError:
                screen.error("what was typed is not UTF-8: set the terminal's character set")
                continue
            except KeyboardInterrupt:
                if not self._reader.had_text and self._quits():
                    return INTERRUPTED
                screen.line()
                if not self._reader.had_text:
                    screen.dim("Ctrl-C again quits; so do Ctrl-D and /quit")
                continue
            if text.strip() and self._handle(text.rstrip("\n")):
                return INTERRUPTED
        return 0

    def _handle(self, text: str) -> bool:
        """Carry out one message or command; return whether Ctrl-C was pressed twice."""
        desk = self._desk
        self._remember(text)
        try:
            check_text(text, "what was typed")
            if commands.is_command(text):
                n = answer(desk, lambda: commands.execute(desk, text), json=self._json, stats=self._stats)
            else:
                n = answer(desk, lambda: _ask(desk, text), json=self._json, stats=self._stats)
        except EdgespecError as error:
            desk.screen.error(str(error))
            return False
        except OSError:
            raise  # stdout is closed or full: nothing can be shown any more
        except Exception as error:  # a bug must not cost the user the conversation
            if desk.engine.config.debug:
                desk.screen.line(traceback.format_exc())
            desk.screen.error(f"internal error: {type(error).__name__}: {error}; /save keeps the conversation")
            return False
        if n:
            self._pressed_s = time.monotonic()
        return n > 1

    def _quits(self) -> bool:
        now_s = time.monotonic()
        twice = now_s - self._pressed_s < TWICE_S
        self._pressed_s = now_s
        return twice

    def _remember(self, text: str) -> None:
        self._reader.add(text)
        self._history.append(text)
        if self._history.problem and not self._told:
            self._told = True
            self._desk.screen.note(self._history.problem)


def _ask(desk: Desk, text: str) -> Turn:
    try:
        turn = desk.chat.ask("\n\n".join([*desk.attached, text]))
    except ContextFullError as error:
        if desk.attached:
            raise ContextFullError(f"{error}; /file - takes the files out") from error
        raise
    desk.attached.clear()
    return turn
