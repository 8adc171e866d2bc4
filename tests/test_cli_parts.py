"""Parts of the command line by themselves: status line, JSON, line reading, completion, Ctrl-C, history."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.cli import commands, lines, render
from edgespec.cli.history import KEPT, History
from edgespec.cli.interrupt import Interrupts, Presses
from edgespec.conditions import TeamChange
from edgespec.interfaces import Report, Result, Usage

REPORT = Report(
    drafter="ngram", drafter_off_reason=None, rounds=4, drafted=10, accepted=7, accepted_by_position=(4, 3),
    tokens_per_round=2.75, widths={3: 1, 1: 3}, prefill_s=0.5, ttft_s=0.5, decode_s=1.0, draft_s=0.01, verify_s=0.9,
    tok_s=10.04, saved_s=math.inf, heat={"temp_c": math.nan, "more": (2, {3})}, threads=2, cpus_target=(0, 1),
    rss_bytes=300_000_000, notes=("one thing",),
)  # fmt: skip
RESULT = Result("grüße", (1, 2), "stop", Usage(30, 2, 20), REPORT)


def test_status_line_shows_what_is_known() -> None:
    status = render.report_status
    assert status(REPORT, 80) == "10.0 tok/s · 70 % accepted · 2.8 tokens/round · – °C · 2 threads on CPUs 0-1"
    warm = replace(REPORT, heat={"temp_c": 51.6, "freq_cap": 0.783})
    assert status(warm, 110).endswith("· 52 °C · 2 threads on CPUs 0-1 · clock 78 % of its best")
    nothing = replace(REPORT, tok_s=None, drafted=0, tokens_per_round=math.inf, heat=None, cpus_target=None)
    assert status(nothing, 80) == "– tok/s · – % accepted · – tokens/round · – °C · 2 threads on CPUs –"
    assert status(REPORT, 20) == "10.0 t/s · 70 %"
    changes = (TeamChange(3.0, 1, 2, "passes took longer"),)
    fewer = replace(REPORT, threads=1, cpus_target=(0, 4, 5, 6), team_changes=changes)
    assert status(fewer, 120).endswith("1 thread on CPUs 0,4-6: passes took longer")
    assert status(fewer, 80).endswith("2.8 tokens/round · – °C · 1 thread on CPUs 0,4-6")


@given(
    st.integers(0, 100),
    st.none() | st.floats(0, 1e5),
    st.none() | st.floats(-300, 1e5),
    st.none() | st.lists(st.integers(0, 300), unique=True),
    st.text(max_size=200),
)
def test_status_line_fits(
    width: int, tok_s: float | None, temp_c: float | None, cpus: list[int] | None, reason: str
) -> None:
    report = replace(
        REPORT,
        tok_s=tok_s,
        heat={"temp_c": temp_c, "freq_cap": temp_c},
        cpus_target=None if cpus is None else tuple(cpus),
        team_changes=(TeamChange(1.0, 2, 2, reason),),
    )
    assert len(render.report_status(report, width)) <= width


def test_json_has_no_nan_and_only_text_keys() -> None:
    body = json.loads(render.result_json(RESULT), parse_constant=lambda word: pytest.fail(word))
    assert body["report"]["widths"] == {"3": 1, "1": 3}
    assert body["report"]["saved_s"] is None
    assert body["report"]["heat"] == {"temp_c": None, "more": [2, [3]]}


def test_summary_is_readable() -> None:
    text = "\n".join(render.summary(RESULT))
    assert "30 tokens, 20 of them cached" in text
    assert "10 tokens drafted, 7 accepted (70 %)" in text
    assert "saved – s" in text
    assert "one thing" in text
    assert "2 threads on CPUs 0-1; drafter off" in text
    assert "nan" not in text
    assert "kernels" not in text
    computed = replace(RESULT, report=replace(REPORT, kernels="on: avx2 kernels"))
    assert "kernels   on: avx2 kernels" in render.summary(computed)
    assert "taken back" not in text
    replayed = replace(RESULT, report=replace(REPORT, rollback="replay"))
    assert "drafter   ngram; wrong guesses are taken back by replay" in render.summary(replayed)


def read(monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    reader = lines.open_reader([], lambda _: [])
    assert isinstance(reader, lines.PlainReader)
    found = []
    while True:
        try:
            found.append(lines.read_message(reader))
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        ("one\ntwo\r\n", ["one", "two"]),
        ("no end", ["no end"]),
        ('"""a\nb"""\nc\n', ["a\nb", "c"]),
        ('"""\na\n\nb\n"""\n', ["a\n\nb"]),
        ('"""on one line"""\n', ["on one line"]),
        ('""""""\n', [""]),
        ('  """x"""  \n', ["x"]),
        ('"""never closed\nx\n', ["never closed\nx"]),
        ("a\\\nb\\\nc\n", ["a\nb\nc"]),
        ("two \\\\\nc\n", ["two \\\\", "c"]),
        ("end\\\n", ["end"]),
        ("\x1b[200~a\nb\x1b[201~\nc\n", ["a\nb", "c"]),
        ("\x1b[200~a\x1b[201~ b\n", ["a b"]),
        ("\x1b[200~never ends\n", ["never ends"]),
    ],
)
def test_messages(monkeypatch: pytest.MonkeyPatch, typed: str, messages: list[str]) -> None:
    assert read(monkeypatch, typed) == messages


def test_completion(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder").mkdir()
    assert commands.completions("/s") == ["/system", "/save", "/set", "/stats"]
    assert commands.completions("/set temp") == ["/set temperature"]
    assert commands.completions("/drafter n") == ["/drafter none", "/drafter ngram"]
    assert commands.completions(f"/load {tmp_path}/") == [f"/load {tmp_path}/folder/", f"/load {tmp_path}/notes.txt"]
    assert commands.completions("/load /nowhere/x") == []
    assert commands.completions("hello /s") == []
    assert commands.completions("/undo x") == []


def test_every_command_is_in_the_help_and_none_shadows_an_alias() -> None:
    names = "help system clear retry undo save load file set stats drafter quit"
    assert set(commands.COMMANDS) == set(names.split())
    assert not set(commands.ALIASES) & set(commands.COMMANDS)
    assert all(command.usage.startswith(f"/{name}") for name, command in commands.COMMANDS.items())


def test_history_survives_damage_and_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.jsonl"
    history = History(path)
    assert history.load() == []
    history.append("two\nlines")
    with path.open("ab") as file:
        file.write(b'\xff\n7\n{"x": 1}\n""\n' + b"[" * 100_000 + b"\n")
    history.append("grüße")
    assert history.load() == ["two\nlines", "grüße"]
    for i in range(KEPT + 300):
        history.append(str(i))
    assert history.load()[-1] == str(KEPT + 299)
    assert len(path.read_text().splitlines()) == KEPT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert History(None).load() == []


@pytest.fixture
def handler() -> Iterator[object]:
    before = signal.getsignal(signal.SIGINT)
    yield before
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_and_wait() -> None:
    press()
    time.sleep(5)


def wait(condition: object) -> None:
    until_s = time.monotonic() + 5
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_ctrl_c_calls_stop_once_a_press(handler: object) -> None:
    stopped = []
    with Interrupts() as ctrl_c:
        ctrl_c.stops(lambda: stopped.append(1))
        press()
        wait(lambda: ctrl_c.count == 1)
        press()
        wait(lambda: ctrl_c.count == 2)
    assert len(stopped) == 2


def test_ctrl_c_before_there_is_anything_to_stop(handler: object) -> None:
    stopped = []
    with Interrupts() as ctrl_c:
        press()
        wait(lambda: ctrl_c.count == 1)
        ctrl_c.stops(lambda: stopped.append(1))
    assert stopped == [1]


def test_ctrl_c_between_an_answer_and_the_prompt_is_raised_at_the_prompt(handler: object) -> None:
    with Presses() as presses:
        with Interrupts():
            pass
        press()  # neither raised here nor lost
        with pytest.raises(KeyboardInterrupt), presses.reading():
            pytest.fail("it was pressed before")
        with presses.reading():  # once
            pass


def test_ctrl_c_while_reading_is_raised_at_once(handler: object) -> None:
    with Presses() as presses, pytest.raises(KeyboardInterrupt), presses.reading():
        press_and_wait()


def test_ignored_ctrl_c_stays_ignored(handler: object) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as ctrl_c:
        press()
        time.sleep(0.05)
        assert ctrl_c.count == 0
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN
