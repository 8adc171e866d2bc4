"""`edgespec drafter train`: generate text with the target, fit a drafter to it, write a package, all within a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec import cheap_rows, paths
from edgespec.bench import workloads
from edgespec.config import EngineConfig
from edgespec.drafters import facts_of
from edgespec.errors import DrafterError
from edgespec.hub import store
from edgespec.target.llama import LlamaTarget
from edgespec.target.llama import load as load_target
from edgespec.target.options import TargetOptions
from edgespec.target.template import template_for
from edgespec.train import data, generate, keep_out, passages
from edgespec.train.prompts import Prompts
from edgespec.train.text_file import TextFacts, TextFile

GENERATING = 0.6
"""Share of the time; the rest is for fitting. More text helps more than more steps."""
_TELL_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, on what, for how long."""

    config: EngineConfig
    minutes: float
    threads: int
    own: tuple[Path, ...] = ()
    machine: bool = True
    """Whether prompts are made of what the machine has, too."""
    keep_out: tuple[Path, ...] = ()
    seed: int = 0
    name: str | None = None
    folder: Path | None = None
    """Where the package goes; None: to the user's packages."""
    text: Path | None = None
    """The file of generated text; None: the model's in the cache."""
    only: Literal["generate", "fit"] | None = None
    max_text_mb: int = 4096
    memory_mb: int = 2048
    n_side_by_side: int = 16
    n_rows: int = 6144
    """Tokens that the drafter knows: the commonest ones of the text."""
    width: int = 512
    n_draft: int = 4
    command: str = "edgespec drafter train"


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it; a folder of None: only text was generated."""

    folder: Path | None
    n_tokens: int
    """Of all the generated text there is."""
    notes: tuple[str, ...]


def text_path(model: str) -> Path:
    """Where the generated text of models of the same trained weights is kept.

    Raises:
        ConfigError: no home folder is known.
    """
    return paths.cache_dir() / "train" / f"{model[:16]}.text"


def train(job: Job, tell: Callable[[str], None] = lambda _line: None) -> Trained:
    """Generate, fit, write. What was generated is kept, and taken up by the next training.

    Raises:
        ModelError: the model cannot be loaded, or a pass failed.
        ConfigError: a file to read is not there.
        DrafterError: this model shows no hidden states, something is not installed, or there is too little text.
    """
    if job.only != "generate":
        _need_torch()
    kept_out = keep_out.KeepOut(
        [*(text for path in job.keep_out for text in keep_out.texts_of(path)), *(q.text for q in workloads.load())]
    )
    began_s = time.monotonic()
    found = passages.sources(job.own, machine=job.machine)
    path = store.resolve(job.config.model, config=job.config)
    cheap_rows.load(job.config)
    n_seats = job.n_side_by_side if job.only != "fit" else 1
    options = TargetOptions(
        n_ctx=n_seats * generate.CTX, n_threads=job.threads, n_seq_max=n_seats, n_rows_max=n_seats, kv_unified=False
    )
    with load_target(path, options) as target:
        facts, info = facts_of(target), target.info
        if not target.n_hidden or facts.model is None:
            raise DrafterError(f"{target.name} shows no hidden states: no drafter can be trained on it")
        tokenizer = facts.tokenizer(facts.n_vocab)
        text_facts = TextFacts(facts.model, target.n_hidden, facts.n_vocab, min(generate.N_TOP, facts.n_vocab))
        where = job.text or text_path(facts.model)
        if job.only != "fit":
            share = 1.0 if job.only == "generate" else GENERATING
            _generate(job, target, where, text_facts, found, kept_out, began_s + 60 * share * job.minutes, tell)
        generating = kept_out.n_dropped, kept_out.n_seen
        left_out: frozenset[int] = frozenset()
        if job.only != "generate":
            with TextFile(where, text_facts) as file:
                left_out = data.touching(file, target.piece, kept_out)
    notes = (f"{generating[0]} of {generating[1]} new prompts were dropped for sharing {keep_out.N_WORDS} words in "
             f"a row, or all, with {kept_out.n_texts} texts to keep out",)  # fmt: skip
    with TextFile(where, text_facts) as file:
        if job.only == "generate":
            return Trained(None, file.n_tokens, notes)
        from edgespec.train import make

        left_s = max(2.0, began_s + 60 * job.minutes - time.monotonic())
        folder = make.package_of(job, file, info, facts, tokenizer, kept_out, left_out, left_s, tell)
        return Trained(folder, file.n_tokens, notes)


def _need_torch() -> None:
    try:
        import onnx  # noqa: F401 - only whether they are there
        import torch  # noqa: F401
    except ImportError as error:
        raise DrafterError(f"{error.name} is not installed: pip install 'edgespec[train]'") from error


def _generate(
    job: Job,
    target: LlamaTarget,
    where: Path,
    facts: TextFacts,
    found: list[passages.Source],
    kept_out: keep_out.KeepOut,
    until_s: float,
    tell: Callable[[str], None],
) -> None:
    vocab = target.vocab
    template = template_for(
        target.metadata("tokenizer.chat_template"), target.architecture, bos=vocab.written(vocab.bos),
        eos=vocab.written(vocab.eos), has_token=lambda text: len(target.encode(text)) == 1,
    )  # fmt: skip
    prompts = Prompts(passages.Passages(found, job.seed), job.seed)
    with TextFile(where, facts, writing=True) as file:
        if file.n_tokens:
            tell(f"{file.n_tokens} tokens are there already, in {where}")
        numbered = generate.in_order(prompts.make, file.next_number)
        generator = generate.Generator(target, template, file, numbered, kept_out, job.seed)
        began_s = told_s = time.monotonic()

        def go_on() -> bool:
            nonlocal told_s
            now_s = time.monotonic()
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                speed = generator.n_tokens / (now_s - began_s)
                tell(f"{file.n_tokens} tokens of text, {speed:.0f} a second, {max(0.0, until_s - now_s):.0f} s to go")
            return now_s < until_s and file.n_bytes < job.max_text_mb << 20

        generator.run(go_on)
