"""Passages to build prompts on, from what a machine has offline: manuals, documentation, Python's library, own files.

Nothing here is shipped or learned from: the target's answers are.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.errors import ConfigError

Kind = Literal["prose", "foreign", "code", "own"]
KINDS: tuple[Kind, ...] = ("prose", "foreign", "code", "own")
_SHORTEST, _LONGEST = 160, 1400
"""Characters of a passage."""
_MOST_BYTES = 2 << 20
_A_FILE = 4
"""Passages drawn from one file each time it comes round."""
_A_FAMILY = 40
"""Files whose names begin alike: some programs have a manual page for each of ten thousand commands."""
_MAN = Path("/usr/share/man")
_DOC = Path("/usr/share/doc")
_FORTUNES = Path("/usr/share/games/fortunes")
_DULL = re.compile(r"(?i)^(changelog|copyright|authors|credits|todo|thanks|install|buildinfo)")
_ESCAPE = re.compile(r"\\(?:f(?:\[\w*\]|\(..|.)|s[+-]?\d+|\[\w+\]|\(..|[&/,|^:%c])")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text and the file it is of."""

    kind: Kind
    """foreign: prose in another language than English."""
    language: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """A file, and how passages are cut from it."""

    path: Path
    kind: Kind
    language: str
    cut: Callable[[str], list[str]]


def sources(own: Sequence[Path] = (), *, machine: bool = True) -> list[Source]:
    """All files that passages can be drawn from, in a fixed order. `machine`: not the user's own alone.

    Raises:
        ConfigError: a place of the user's is not there.
    """
    found: list[Source] = []
    for place in own:
        if not place.exists():
            raise ConfigError(f"{place}: no such file or folder")
        for path in _files(place):
            cut = _functions if path.suffix == ".py" else _chat if path.suffix in (".json", ".jsonl") else paragraphs
            found.append(Source(path, "own", "", cut))
    if not machine:
        return found
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in _files(library):
        if path.suffix == ".py" and not {"test", "tests", "idlelib", "site-packages", "lib2to3"} & set(path.parts):
            found += [Source(path, "code", "en", _functions), Source(path, "prose", "en", _docstrings)]
    for path in _files(_MAN):
        if path.suffix == ".gz":
            language = path.relative_to(_MAN).parts[0]
            english = language.startswith("man")
            found.append(Source(path, "prose" if english else "foreign", "en" if english else language[:2], _manual))
    found += [Source(path, "prose", "en", paragraphs) for path in _files(_DOC) if _is_document(path)]
    found += [Source(path, "prose", "en", _fortunes) for path in _files(_FORTUNES) if not path.suffix]
    return _varied(found)


def _varied(found: list[Source]) -> list[Source]:
    """Without most of those whose names begin alike."""
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for source in found:
        family = (source.kind, source.language, re.split(r"[-_.]", source.path.name)[0])
        seen[family] += 1
        if seen[family] <= _A_FAMILY or source.kind == "own":
            kept.append(source)
    return kept


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _is_document(path: Path) -> bool:
    named = path.name.removesuffix(".gz")
    return not _DULL.match(named) and named.lower().endswith(("readme", "news", "faq", ".md", ".txt", ".rst"))


class Passages:
    """Draws passages of each kind, file after file in an order that `seed` gives, and again from the start."""

    def __init__(self, found: Sequence[Source], seed: int) -> None:
        rng = random.Random(f"files {seed}")
        by_kind = {kind: [source for source in found if source.kind == kind] for kind in KINDS}
        for kind in KINDS:
            rng.shuffle(by_kind[kind])
        self._by_kind = by_kind

    def has(self, kind: Kind) -> bool:
        """Whether there are files of a kind."""
        return bool(self._by_kind[kind])

    def draw(self, kind: Kind, number: int) -> Passage | None:
        """The passage with this number; None where its file has none that will do."""
        files = self._by_kind[kind]
        if not files:
            return None
        source = files[number % len(files)]
        cuts = source.cut(_read(source.path))
        if not cuts:
            return None
        text = random.Random(f"{source.path} {number}").choice(cuts[: _A_FILE * (1 + number // len(files))])
        return Passage(kind, source.language, str(source.path), text)


def _read(path: Path) -> str:
    """A file's text; "" where it is none or cannot be read, which a machine has a few of."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                raw = file.read(_MOST_BYTES)
        else:
            with path.open("rb") as plain:
                raw = plain.read(_MOST_BYTES)
        return "" if b"\0" in raw else raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return ""


def paragraphs(text: str) -> list[str]:
    """Runs of paragraphs that make a passage each: of readable length, and mostly words."""
    found: list[str] = []
    held = ""
    for part in re.split(r"\n\s*\n", text):
        joined = " ".join(part.split())
        if sum(char.isalpha() or char.isspace() for char in joined) < 0.8 * len(joined) or len(joined) > _LONGEST:
            held = ""
            continue
        held = f"{held}\n\n{joined}" if held else joined
        if len(held) >= _SHORTEST:
            found.append(held[:_LONGEST])
            held = ""
    return found


def _manual(text: str) -> list[str]:
    """Passages of a page in roff; tables and examples are left out with all that is not running text."""
    lines = []
    for line in text.splitlines():
        if line.startswith((".", "'")):
            macro, _, rest = line.partition(" ")
            lines.append(rest.replace('"', "") if macro in (".B", ".I", ".BR", ".IR", ".RB", ".Nm", ".Xr") else "")
            if macro in (".SH", ".Sh", ".PP", ".P", ".Pp", ".TP", ".SS", ".LP"):
                lines.append("")
        else:
            lines.append(line)
    plain = _ESCAPE.sub("", "\n".join(lines).replace("\\-", "-").replace("\\e", "\\").replace("\\(aq", "'"))
    return paragraphs(re.sub(r"(?<!\n)\n(?!\n)", " ", plain.replace("\\", "")))


def _fortunes(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n%\n") if _SHORTEST <= len(part) <= _LONGEST]


def _nodes(text: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):  # of another Python
        return []


def _functions(text: str) -> list[str]:
    """The source of functions, and of classes that are short."""
    lines = text.splitlines()
    found = []
    for node in _nodes(text):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno is not None:
            source = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])
            if _SHORTEST <= len(source) <= _LONGEST:
                found.append(source)
    return found


def _docstrings(text: str) -> list[str]:
    found = []
    for node in _nodes(text):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            found += paragraphs(ast.get_docstring(node) or "")
    return found


def _chat(text: str) -> list[str]:
    """What a user typed, from files of questions, prompt histories and saved conversations: each text is a passage."""
    found: list[str] = []
    try:
        bodies = [json.loads(text)]
    except ValueError:
        bodies = []
        for line in text.splitlines():
            try:
                bodies.append(json.loads(line))
            except ValueError:
                continue
    while bodies:
        body = bodies.pop()
        if isinstance(body, dict):
            bodies += list(body.values())
        elif isinstance(body, list):
            bodies += body
        elif isinstance(body, str) and len(body.split()) > 3:
            found.append(body[:_LONGEST])
    return found
