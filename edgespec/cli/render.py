"""Everything chat and run show: answers on stdout, all else on stderr; colour and status only on a terminal.

Knows how things look, not where they come from.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TextIO

from edgespec.think import ThinkSplitter, strip_thinking

if TYPE_CHECKING:
    from edgespec.interfaces import Report, Result

UNKNOWN = "–"
_DIM, _RED, _PLAIN, _ERASE = "\x1b[2m", "\x1b[31m", "\x1b[0m", "\r\x1b[K"
_CONTROL: dict[int, int | None] = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    ord("\r"): None,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
"""What a model must not send to a terminal, as visible signs: escape sequences could do anything to it."""


class Screen:
    """The two output streams, and what may be done with them."""

    def __init__(self, *, color: str = "auto", think: str = "dim", status: bool = True) -> None:
        """`color` is auto, always or never; `think` is dim, hide or show."""
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:  # a stand-in of a test runner may lack it
                reconfigure(errors="replace")
        self.think = think
        self.tty_out = _is_tty(sys.stdout)
        self.tty_err = _is_tty(sys.stderr)
        self.status = status and self.tty_out and self.tty_err
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._color_out = color == "always" or (color == "auto" and self.tty_out and not plain)
        self._color_err = color == "always" or (color == "auto" and self.tty_err and not plain)
        self._waiting = False

    def answer(self, *, opened: bool = False, exact: bool = False) -> AnswerWriter:
        """A writer for one answer; `opened`: it begins inside a `<think>` block; `exact`: nothing is told apart."""
        return AnswerWriter(self, opened=opened, exact=exact)

    def out(self, text: str, *, dim: bool = False) -> None:
        """Text of an answer, shown at once."""
        if self.tty_out:
            text = text.translate(_CONTROL)
        _write(sys.stdout, f"{_DIM}{text}{_PLAIN}" if dim and self._color_out else text)

    def line(self, text: str = "") -> None:
        """A line beside the answer; on a terminal broken at words."""
        self._put(self._broken(text))

    def dim(self, text: str) -> None:
        """A less important line."""
        text = self._broken(text)
        self._put(f"{_DIM}{text}{_PLAIN}" if self._color_err else text)

    def error(self, text: str) -> None:
        """A line that says what went wrong."""
        text = self._broken(f"error: {text}")
        self._put(f"{_RED}error:{_PLAIN}{text.removeprefix('error:')}" if self._color_err else text)

    def note(self, text: str) -> None:
        """A line the user should know about."""
        self.dim(f"note: {text}")

    def wait(self, text: str) -> None:
        """A line that the next one replaces; only on a terminal."""
        if self.tty_err:
            width = max(1, columns() - 1)
            _write(sys.stderr, (_ERASE if self._waiting else "") + text[:width])
            self._waiting = True

    def ready(self) -> None:
        """Take the line of `wait` away."""
        self._settle()

    def show_status(self, text: str) -> None:
        """The status line, if there is one."""
        if self.status:
            self.dim(text)

    def _broken(self, text: str) -> str:
        if not self.tty_err or "\n" in text or len(text) <= columns():
            return text
        # Lines of /stats have their label in the first ten columns.
        indent = " " * 10 if text[9:10] == " " and text[10:11] != " " else "  "
        return "\n".join(
            textwrap.wrap(text, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )

    def _put(self, text: str) -> None:
        self._settle()
        _write(sys.stderr, text + "\n")

    def _settle(self) -> None:
        if self._waiting:
            self._waiting = False
            _write(sys.stderr, _ERASE)


class AnswerWriter:
    """Writes one answer as it streams, its reasoning dimmed, hidden or as it is."""

    def __init__(self, screen: Screen, *, opened: bool, exact: bool) -> None:
        self._screen = screen
        self._splitter = None if exact or screen.think == "show" else ThinkSplitter(opened=opened)
        self._hides = screen.think == "hide" or not screen.tty_out
        self._last = ""
        self._thinking = False

    def push(self, text: str) -> None:
        """Write what is certain of the text so far."""
        if self._splitter is None:
            self._write(text, thinking=False)
        else:
            for piece in self._splitter.push(text):
                self._write(piece.text, thinking=piece.thinking)

    def finish(self, *, end_line: bool = True, stopped: bool = False) -> None:
        """Write what was held back, and end the line; `stopped`: the terminal has written ^C into it."""
        for piece in self._splitter.finish() if self._splitter else ():
            self._write(piece.text, thinking=piece.thinking)
        if (stopped and self._screen.tty_out) or (end_line and self._last and not self._last.endswith("\n")):
            self._screen.out("\n")

    def _write(self, text: str, *, thinking: bool) -> None:
        if not text or (thinking and self._hides):
            return
        if self._thinking and not thinking and not self._last.endswith("\n"):
            text = "\n\n" + text
        self._thinking = thinking
        self._last = text
        self._screen.out(text, dim=thinking)


def columns() -> int:
    """Width of the terminal."""
    return shutil.get_terminal_size().columns


def report_status(report: Report, width: int) -> str:
    """The status line of a finished answer: as many of its fields as fit, in the order of their weight."""
    share = 100 * report.accepted / report.drafted if report.drafted else None
    cap, cpus = _heat(report, "freq_cap"), _cpus(report.cpus_target)
    fields = [
        (number(report.tok_s), " tok/s", " t/s"),
        (number(share, 0), " % accepted", " %"),
        (number(report.tokens_per_round), " tokens/round", " t/r"),
        (number(_heat(report, "temp_c"), 0), " °C", " °C"),
        (f"{_threads(report.threads)} on CPUs {cpus}", "", ""),
    ]
    if cap is not None and cap < 1:
        fields.append((f"clock {number(100 * cap, 0)} %", " of its best", ""))
    why = f": {report.team_changes[-1].reason}" if report.team_changes else ""
    # What is said at length gives way before what is measured.
    for form, end in ((1, why), (1, ""), (2, "")):
        line = " · ".join(field[0] + field[form] for field in fields) + end
        if len(line) <= width:
            return line
    short = [field[0] + field[2] for field in fields]
    while len(short) > 1 and len(" · ".join(short)) > width:
        short.pop()
    return " · ".join(short)[: max(0, width)]


def _threads(n: int | None) -> str:
    return "1 thread" if n == 1 else f"{UNKNOWN if n is None else n} threads"


def _cpus(cpus: Sequence[int] | None) -> str:
    """Cores in few signs: "0-3,5"."""
    if cpus is None:
        return UNKNOWN
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _heat(report: Report, key: str) -> float | None:
    value = (report.heat or {}).get(key)
    return value if isinstance(value, float | int) else None


def _machine(report: Report) -> list[str]:
    """What the device did, for people."""
    heat = report.heat or {}
    memory = None if report.rss_bytes is None else report.rss_bytes / 1e6
    wide = "" if report.threads_wide in (None, report.threads) else f" ({report.threads_wide} for drafts)"
    inline = report.cpus_drafter == report.cpus_target
    drafter = "inline" if inline else f"on {_cpus(report.cpus_drafter)}" if report.cpus_drafter else "off"
    source = f" ({heat['source']})" if heat.get("source") else ""
    cap = _heat(report, "freq_cap")
    lines = [
        f"machine   {_threads(report.threads)}{wide} on CPUs {_cpus(report.cpus_target)}; drafter {drafter}; "
        f"{number(memory, 0)} MB",
    ]
    known = [
        f"{number(_heat(report, 'temp_c'), 0)} °C{source}",
        f"{number(_heat(report, 'headroom'), 2)} of 1.00 used up" if _heat(report, "headroom") is not None else "",
        f"clock up to {number(100 * cap, 0)} % of its best" if cap is not None else "",
        f"policy {report.policy}",
    ]
    lines.append(f"heat      {', '.join(text for text in known if text)}")
    limits = heat.get("limits")
    lines += [f"limit     {text}" for text in limits] if isinstance(limits, list) else []
    return lines + [
        f"threads   {change.one} ({change.wide} for drafts) after {seconds(change.at_s)}: {change.reason}"
        for change in report.team_changes
    ]


def summary(result: Result) -> list[str]:
    """What an answer cost and what drafting did, for people."""
    report, usage = result.report, result.usage
    used = report.drafter if report.drafter_off_reason is None else f"{report.drafter} ({report.drafter_off_reason})"
    undone = f"; wrong guesses are taken back by {report.rollback}" if report.rollback not in (None, "removal") else ""
    share = 100 * report.accepted / report.drafted if report.drafted else None
    lines = [
        f"prompt    {usage.prompt_tokens} tokens, {usage.cached_tokens} of them cached; {seconds(report.prefill_s)}",
        f"answer    {usage.completion_tokens} tokens in {seconds(report.decode_s)}, {number(report.tok_s)} tok/s; "
        f"first after {seconds(report.ttft_s)}; ended by {result.finish_reason}",
        f"drafter   {used}{undone}",
        f"drafts    {report.drafted} tokens drafted, {report.accepted} accepted ({number(share, 0)} %); "
        f"{number(report.tokens_per_round, 2)} tokens per round, {report.rounds} rounds",
        f"time      drafting {seconds(report.draft_s)}, verifying {seconds(report.verify_s)}, "
        f"saved {seconds(report.saved_s)} against plain decoding; loading {seconds(report.load_s)}",
        *_machine(report),
    ]
    if report.kernels is not None:
        lines.append(f"kernels   {report.kernels}")
    if report.exact_why is not None:
        lines.append(f"exact     {'yes' if report.exact else 'no'}: {report.exact_why}")
    if report.tuned is not None:
        lines.append(f"tuned     {report.tuned}")
    if report.widths:
        widths = ", ".join(f"{width}: {count}" for width, count in sorted(report.widths.items()))
        lines.insert(4, f"widths    {widths}")
    return lines + [f"note      {note}" for note in report.notes]


def result_json(result: Result) -> str:
    """An answer as one line of JSON: numbers that are not finite become null, keys become strings."""
    body = {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "usage": asdict(result.usage),
        "report": asdict(result.report),
    }
    if result.logprobs:
        body["logprobs"] = [asdict(item) for item in result.logprobs]
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return json.dumps(_jsonable(body), ensure_ascii=encoding != "utf8", allow_nan=False)


def without_thinking(result: Result, *, opened: bool) -> Result:
    """The same answer, its text without `<think>` blocks."""
    return replace(result, text=strip_thinking(result.text, opened=opened))


def number(value: float | None, digits: int = 1) -> str:
    """A number for people, "–" where it is unknown."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    """A duration for people."""
    return number(value, 2) + " s"


def print_json(line: str) -> None:
    """One line of machine-readable output."""
    _write(sys.stdout, line + "\n")


def _jsonable(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def _is_tty(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _write(stream: TextIO, text: str) -> None:
    if text:
        stream.write(text)
        stream.flush()
