"""`edgespec drafter index` and `forget`: what drafting remembers beyond a chat."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from edgespec.errors import ConfigError, DrafterError

_TEXT_BYTES = 32 * 2**20
"""Longer files are data, not documents."""
_LOCK_S = 10.0


def index(
    places: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or folders with files.")],
    model: Annotated[str | None, typer.Option("--model", help="Whose tokenizer; left out: the default model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remember documents to draft from: code, notes, what a search of yours puts into prompts.

    They are kept as tokens, on this machine only, with what chats were about. What is remembered already is passed
    over, and so are hidden files, links and what is not text. When the store is full the oldest makes room.
    """
    from edgespec.cli import common
    from edgespec.cli.render import Screen
    from edgespec.draft import store
    from edgespec.draft.store_writer import Writer
    from edgespec.drafters import facts_of
    from edgespec.hub import store as models
    from edgespec.hub.files import mb
    from edgespec.target.llama import load
    from edgespec.target.options import TargetOptions

    missing = [place for place in places if not place.exists()]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file or folder")
    config = common.load_config(model=model)
    screen = Screen(color=config.color)
    screen.wait(f"loading {config.model} ...")
    path = models.resolve(config.model, config=config)
    n_read = n_known = n_other = n_tokens = 0
    # Nothing is computed with it: as little as makes a context, the weights as they are in the file.
    with load(path, TargetOptions(n_ctx=256, repack=False, self_check=False)) as target:
        facts = facts_of(target)
        digest = facts.tokenizer(facts.n_vocab)
        where = store.folder()
        for document in _documents(places):
            text = _text(document)
            if not text:
                n_other += 1
                continue
            screen.wait(f"{n_tokens} tokens learned ...")
            tokens = target.encode(text, special=False)
            # For one document at a time: who chats meanwhile is not kept waiting.
            with _patience(), Writer(where, digest, facts.n_vocab, wait_s=_LOCK_S) as writer:
                n_new = writer.add(tokens, facts.model)
            for note in writer.notes:
                screen.note(note)
            n_read, n_known, n_tokens = n_read + 1, n_known + (not n_new), n_tokens + n_new
    screen.ready()
    found = store.open_store(facts)
    held = (found.n_held, found.path.stat().st_size) if found is not None else (0, 0)
    if as_json:
        typer.echo(json.dumps({
            "documents": n_read, "known": n_known, "left_out": n_other, "tokens": n_tokens, "held": held[0],
            "bytes": held[1], "file": None if found is None else str(found.path), "model": target.name,
        }))  # fmt: skip
        return
    typer.echo(f"{n_tokens} tokens of {n_read - n_known} documents learned for {target.name}; "
               f"{n_known} were known, {n_other} are not text or cannot be read")  # fmt: skip
    typer.echo(f"{held[0]} tokens are remembered, in {mb(held[1])}")


def forget(yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Delete all that chats and documents left for drafting, of all models.

    A chat that runs meanwhile does not draft from it any more from its next answer on.
    """
    from edgespec.draft import store, store_writer
    from edgespec.hub.files import mb

    where = store.folder()
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError("to forget without being asked, add --yes")
        if not typer.confirm(f"Delete what is remembered in {where}?", err=True):
            typer.echo("nothing was deleted", err=True)
            return
    with _patience():
        n_bytes = store_writer.forget(where, _LOCK_S)
    typer.echo(f"{mb(n_bytes)} freed", err=True)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise DrafterError("another edgespec is writing to the store: try again when it has ended") from error


def _documents(places: list[Path]) -> Iterator[Path]:
    """The files of these places, those of a folder by name; what was named itself is taken whatever it is called."""
    for place in places:
        if not place.is_dir():
            yield place
        for folder, folders, names in os.walk(place):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
            yield from (path for path in paths if not path.is_symlink())


def _text(path: Path) -> str:
    """A document's text; "" where it is none, or cannot be read."""
    try:
        if not path.is_file():  # a pipe nobody writes to would be waited for without an end
            return ""
        with path.open("rb") as file:
            raw = file.read(_TEXT_BYTES + 1)
        return "" if len(raw) > _TEXT_BYTES or b"\0" in raw else raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
