"""Drafter packages: a folder with a card (`drafter.toml`), an ONNX graph and what belongs to it.

The card says which target and tokenizer the drafter was trained for and what it was worth then; every other file is
listed there with its checksum. Checked before any library sees the graph. The format is in docs/drafter-packages.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgespec import paths
from edgespec.core.offers import TargetFacts
from edgespec.draft.onnx_file import Array, Graph, read
from edgespec.errors import ConfigError, DrafterError

CARD = "drafter.toml"
FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MAX_CARD, _MAX_FILE = 64 << 10, 512 << 20
_MAX_DRAFT, _MAX_WINDOW = 64, 4096
_KEYS = {"format", "name", "kind", "graph", "n_draft", "target", "tokenizer", "inputs", "vocabulary", "acceptance",
         "training", "files"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Card:
    """What a package says of itself; every number is within the range that is checked."""

    name: str
    kind: Literal["hidden", "token"]
    """hidden: reads the target's state behind the last verified token; token: reads tokens only."""
    graph: str
    n_draft: int
    """Tokens of one call, 1..64."""
    target_name: str
    target_hash: str
    """Of the target's trained weights, in whatever quantisation (`TargetFacts.model`)."""
    n_hidden: int
    """Length of the target's state; 0 for the kind "token"."""
    tokenizer_hash: str
    n_vocab: int
    """Tokens of the tokenizer that `tokenizer_hash` is over; a target may have more, as padding."""
    n_tokens: int
    """Newest tokens that one call reads, 1..4096."""
    pad: int
    """Stands in front of shorter texts, as an id of the graph's vocabulary."""
    vocabulary: str | None
    """File of the target's ids by those of the graph (`.npy`, one row of whole numbers); None: they are the same."""
    unknown: int | None
    """The graph's id for all other tokens; None: nothing is drafted after one of them."""
    rates: tuple[float, ...]
    """Share of drafted tokens that were right at training, each given that the ones before it were."""
    measured_on: str
    command: str
    """What made the package."""
    seed: int
    files: Mapping[str, str]
    """sha256 by name of every file but the card."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package whose files are what its card says."""

    folder: Path
    card: Card
    graph: Graph
    ids: Array | None
    """The target's ids by those of the graph, as int64; None: they are the same."""

    @property
    def graph_path(self) -> Path:
        """The graph's file."""
        return self.folder / self.card.graph


def read_card(folder: Path) -> Card:
    """The card of a package.

    Raises:
        DrafterError: there is none, or it is not valid; the message names the folder.
    """
    path = folder / CARD
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            text = file.read(_MAX_CARD + 1)
        if len(text) > _MAX_CARD:
            raise ValueError("too large")
        return _card(tomllib.loads(text.decode("utf-8")))
    except FileNotFoundError:
        raise DrafterError(f"{folder} is no drafter package: it has no {CARD}") from None
    except OSError as error:
        raise DrafterError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DrafterError(f"{path} is no card of format {FORMAT}: {what}") from error


def _card(raw: dict[str, Any]) -> Card:
    version = raw["format"]
    if version != FORMAT:
        raise ValueError(f"it is of format {version}")
    if set(raw) - _KEYS:
        raise ValueError(f"unknown key {min(set(raw) - _KEYS)!r}")
    if raw["kind"] not in ("hidden", "token"):
        raise ValueError("kind must be hidden or token")
    target, tokenizer, inputs = raw["target"], raw["tokenizer"], raw["inputs"]
    vocabulary, acceptance, training = raw.get("vocabulary", {}), raw["acceptance"], raw["training"]
    files = {_file_name(name): _hash(value) for name, value in raw["files"].items()}
    card = Card(
        name=package_name(raw["name"]),
        kind=raw["kind"],
        graph=_file_name(raw["graph"]),
        n_draft=_whole(raw["n_draft"], "n_draft", 1, _MAX_DRAFT),
        target_name=_line(target["name"]),
        target_hash=_hash(target["hash"]),
        n_hidden=_whole(target["n_hidden"], "n_hidden", 1, 1 << 20) if raw["kind"] == "hidden" else 0,
        tokenizer_hash=_hash(tokenizer["hash"]),
        n_vocab=_whole(tokenizer["n_vocab"], "n_vocab", 1, 1 << 24),
        n_tokens=_whole(inputs["n_tokens"], "n_tokens", 1, _MAX_WINDOW),
        pad=_whole(inputs.get("pad", 0), "pad", 0, 1 << 24),
        vocabulary=_file_name(vocabulary["file"]) if vocabulary else None,
        unknown=_whole(vocabulary["unknown"], "unknown", 0, 1 << 24) if "unknown" in vocabulary else None,
        rates=tuple(_share(rate) for rate in acceptance["rates"]),
        measured_on=_line(acceptance["measured_on"]),
        command=_line(training["command"]),
        seed=_whole(training["seed"], "seed", 0, 2**63 - 1),
        files=files,
    )
    for name in (card.graph, card.vocabulary):
        if name is not None and name not in files:
            raise ValueError(f"{name} is not listed under files")
    return card


def package_name(raw: object) -> str:
    """A name that is safe as that of a folder.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(raw, str) or not _NAME.fullmatch(raw):
        raise ValueError(f"{raw!r:.80} is not a name (letters, digits, and _ . + - after the first)")
    return raw


def _file_name(raw: object) -> str:
    name = package_name(raw)
    if name == CARD:
        raise ValueError(f"{CARD} is the card itself")
    return name


def _hash(raw: object) -> str:
    if not isinstance(raw, str) or not _HASH.fullmatch(raw):
        raise ValueError(f"{raw!r:.80} is not a sha256 in hexadecimal")
    return raw


def _line(raw: object) -> str:
    if not isinstance(raw, str) or not raw or len(raw) > 1000 or not raw.isprintable():
        raise ValueError(f"{raw!r:.80} is not one line of text")
    return raw


def _whole(raw: object, name: str, low: int, high: int) -> int:
    if type(raw) is not int or not low <= raw <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, not {raw!r:.40}")
    return raw


def _share(raw: object) -> float:
    if not isinstance(raw, int | float) or not 0 <= raw <= 1:
        raise ValueError(f"a rate must be a number from 0 to 1, not {raw!r:.40}")
    return float(raw)


def load(folder: Path) -> Package:
    """Read and check a package whole, without looking at a target.

    Raises:
        DrafterError: a file is missing, is not what the card says, or cannot be used.
    """
    card = read_card(folder)
    files: dict[str, Path] = {}
    content: dict[str, bytes] = {}
    for name, expected in card.files.items():
        path = folder / name
        try:
            # A link could lead anywhere: a package is the files in its folder.
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_FILE:
                raise DrafterError(f"{card.name}: {name} is missing, a link, or larger than {_MAX_FILE >> 20} MiB")
            content[name] = path.read_bytes()
        except OSError as error:
            raise DrafterError(f"{card.name}: {name} cannot be read: {error.strerror or error}") from error
        if hashlib.sha256(content[name]).hexdigest() != expected:
            raise DrafterError(f"{card.name}: {name} is not what the card says: get the package again")
        files[name] = path
    try:
        graph = read(content[card.graph], files)
        _check_ports(card, graph)
        ids = _ids(card, content[card.vocabulary]) if card.vocabulary is not None else None
    except DrafterError as error:
        raise DrafterError(f"{card.name}: {error}") from error
    return Package(folder, card, graph, ids)


def _check_ports(card: Card, graph: Graph) -> None:
    wanted = {"tokens": ("i8", card.n_tokens)}
    if card.kind == "hidden":
        wanted["hidden"] = ("f4", card.n_hidden)
    if set(graph.inputs) != set(wanted) or set(graph.outputs) != {"draft", "confidence"}:
        raise DrafterError(
            f"its graph goes from {', '.join(sorted(graph.inputs))} to {', '.join(sorted(graph.outputs))}, "
            f"a drafter of the kind {card.kind} goes from {', '.join(sorted(wanted))} to confidence, draft"
        )
    for name, (dtype, size) in wanted.items():
        port = graph.inputs[name]
        if port.dtype != dtype or port.shape != (1, size):
            raise DrafterError(f"its graph's input {name} has shape {port.shape}, type {port.dtype}; "
                               f"the card says (1, {size}), {dtype}")  # fmt: skip


def _ids(card: Card, content: bytes) -> Array:
    try:
        raw: Array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except (ValueError, MemoryError) as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise DrafterError(f"its vocabulary cannot be read ({text})") from error
    if raw.ndim != 1 or raw.dtype.kind not in "iu" or not len(raw):
        raise DrafterError("its vocabulary is not one row of whole numbers")
    bad = raw[(raw < 0) | (raw >= card.n_vocab)]
    if len(bad):
        raise DrafterError(f"its vocabulary names token {bad[0]}, the tokenizer has {card.n_vocab}")
    if len(np.unique(raw)) != len(raw):
        raise DrafterError("its vocabulary names a token twice")
    return raw.astype(np.int64)


def why_unfit(card: Card, target: TargetFacts) -> str | None:
    """Why a drafter cannot serve this target; None: it can."""
    if card.n_vocab > target.n_vocab:
        return f"its tokenizer has {card.n_vocab} tokens, that of {target.name} has {target.n_vocab}"
    if card.tokenizer_hash != target.tokenizer(card.n_vocab):
        return f"it was trained for the tokenizer of {card.target_name}, which {target.name} does not have"
    if card.kind == "token":
        return None
    if not target.n_hidden:
        return f"it reads hidden states, which {target.name} does not give (its memory cannot drop single tokens)"
    if card.n_hidden != target.n_hidden:
        return f"it reads hidden states of length {card.n_hidden}, those of {target.name} have {target.n_hidden}"
    if card.target_hash != target.model:
        return f"it was trained on the hidden states of {card.target_name}, and {target.name} has other weights"
    return None


# --- the packages of this machine ---


def folders() -> tuple[Path, Path]:
    """Where packages are: the user's own, which come first, and those that edgespec ships.

    Raises:
        ConfigError: no home folder is known.
    """
    root = Path(__file__).parents[1]
    beside = root.parent / "models"  # a checkout
    return paths.data_dir() / "drafters", (beside if beside.is_dir() else root / "models_data") / "drafters"


def installed() -> list[Path]:
    """Folders of all packages, the user's in place of shipped ones of the same name."""
    found: dict[str, Path] = {}
    for place in reversed(folders()):
        found.update({path.parent.name: path.parent for path in sorted(place.glob(f"*/{CARD}"))})
    return [found[name] for name in sorted(found)]


def find(name: str) -> Path:
    """The folder of a package by its name, or the folder itself.

    Raises:
        DrafterError: there is none.
    """
    for folder in installed():
        if folder.name == name:
            return folder
    if (Path(name) / CARD).is_file():
        return Path(name)
    raise DrafterError(f"no drafter package is named {name!r:.80}: `edgespec drafter list` shows what there is")


def in_use() -> str | None:
    """The package that `use` chose; None: none."""
    try:
        with _choice().open(encoding="utf-8", errors="replace") as file:
            return file.read(80).strip() or None
    except (FileNotFoundError, NotADirectoryError, ConfigError):
        return None
    except OSError as error:
        raise DrafterError(f"{_choice()} cannot be read: {error.strerror or error}") from error


def use(name: str | None) -> None:
    """Draft with this package from now on; None: with none.

    Raises:
        DrafterError: the choice cannot be written.
    """
    path = _choice()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name or ''}\n", encoding="utf-8")
    except OSError as error:
        raise DrafterError(f"{path} cannot be written: {error.strerror or error}") from error


def _choice() -> Path:
    return paths.state_dir() / "drafter"


def install(source: Path) -> Path:
    """Copy a package into the user's folder, in place of one of the same name; where it lies then.

    Raises:
        DrafterError: it is not a sound package, or cannot be copied.
    """
    package = load(source)
    target = folders()[0] / package.card.name
    if source.resolve() == target.resolve():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
        try:
            for name in (CARD, *package.card.files):
                shutil.copyfile(source / name, made / name)
            if target.exists():
                shutil.rmtree(target)
            made.replace(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(made)
    except OSError as error:
        raise DrafterError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def remove(name: str) -> int:
    """Delete a package of the user's; return the bytes freed. One in use is no longer.

    Raises:
        DrafterError: there is no such package, it is one that edgespec ships, or it cannot be deleted.
    """
    folder = find(name)
    if folder.parent != folders()[0]:
        raise DrafterError(f"{folder} is not among your own packages: delete it yourself if you mean it")
    try:
        freed = sum(path.stat().st_size for path in folder.iterdir())
        shutil.rmtree(folder)
    except OSError as error:
        raise DrafterError(f"{folder} cannot be deleted: {error.strerror or error}") from error
    if in_use() == name:
        use(None)
    return freed
