"""Under an exact recipe the drafted text is plain's, whatever logits depend on; which recipe is taken, and why."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf_maker
import pytest
from bench_fakes import run_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unsteady import Unsteady, Ways, certified

from edgespec import certificate
from edgespec import config as configuration
from edgespec.bench import report as bench_report
from edgespec.bench import same_text
from edgespec.bench.compare import Difference
from edgespec.bench.runner import Record
from edgespec.bench.table import table
from edgespec.certificate import Cell, Certificate, Kind, Price
from edgespec.certify import certify
from edgespec.certify_grid import Grid, Means
from edgespec.cli import main
from edgespec.cli.doctor import report
from edgespec.conditions import Team
from edgespec.config import EngineConfig
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller, exact_length
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.round import all_up_to
from edgespec.device import host
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import Topology
from edgespec.doctor import examine
from edgespec.engine import Engine
from edgespec.errors import ConfigError, ModelError
from edgespec.exact import Recipe, decide, recipes, spelled
from edgespec.interfaces import Capabilities, Draft, Limits, Plan, Rows, Sampling
from edgespec.kernels import Status
from edgespec.opening import build_name, exactness
from edgespec.target import gguf_check
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions, kv_types
from edgespec.testing import ScriptedDrafter

ALL = frozenset(range(2, 17))
KINDS: tuple[Kind, ...] = ("single", "wide", "prefill", "company")


def cells(kv: str, widths: frozenset[int] = ALL, *, single: float = 0.0, n_ctx: int = 96, **off: float) -> list[Cell]:
    """Comparisons at one context; widths that are not exact are off by half a logit."""
    found = [Cell("width", kv, n, n_ctx, 64, 0.0 if n in widths else 0.5) for n in sorted(ALL)]
    deviations = {"single": single, **off}
    return found + [Cell(kind, kv, 2, n_ctx, 64, deviations.get(kind, 0.0)) for kind in KINDS]


def price(kv: str, one: float, four: float, one_thread: float = 14.0, n_ctx: int = 96) -> Price:
    return Price(kv, n_ctx, one_thread, one, four, 2 * four, usual_ms=30.0)


def made(*found: list[Cell], prices: tuple[Price, ...] = (), n_ctx: int = 10_000, n_threads: int = 2) -> Certificate:
    return Certificate("f", "b", "m", n_threads, n_ctx, False, tuple(cell for some in found for cell in some), prices)


DEFAULT = price("f16/f16", 10.0, 20.0)


# --- which recipe ---


def test_the_cheapest_of_the_certified_recipes_is_taken() -> None:
    found = made(
        cells("f16/f16", single=0.9), cells("q8_0/q8_0"), cells("f16/bf16"),
        prices=(DEFAULT, price("q8_0/q8_0", 12.0, 24.0), price("f16/bf16", 11.0, 22.0)),
    )  # fmt: skip
    assert [(r.kv, r.one_thread) for r in recipes(found, 8192)] == [
        ("f16/bf16", False), ("f16/f16", True), ("q8_0/q8_0", False),
    ]  # fmt: skip
    best = decide(True, found, 8192).recipe
    assert best is not None
    assert best.kv == "f16/bf16"
    assert best.cost == pytest.approx(1.1)


def test_one_thread_is_the_recipe_where_it_is_the_cheaper_one() -> None:
    found = made(
        cells("f16/f16", single=0.9), cells("q8_0/q8_0"),
        prices=(price("f16/f16", 10.0, 20.0, one_thread=11.0), price("q8_0/q8_0", 12.0, 24.0)),
    )  # fmt: skip
    best = decide(True, found, 8192).recipe
    assert best is not None
    assert (best.kv, best.one_thread) == ("f16/f16", True)
    assert "one thread for single rows" in str(best)


def test_at_a_short_context_what_happens_at_long_ones_does_not_matter() -> None:
    found = made(cells("f16/f16"), cells("f16/f16", frozenset(), single=0.9, n_ctx=272), prices=(DEFAULT,))
    short = decide(None, found, 256)
    assert short.recipe is not None
    assert not short.recipe.one_thread
    assert "at most 2 %" in short.why
    assert decide(None, found, 8192).recipe is None


def test_where_the_default_was_not_priced_beside_it_a_recipe_is_taken_only_when_asked_for() -> None:
    found = made(cells("q8_0/q8_0"), prices=(replace(price("q8_0/q8_0", 10.0, 20.0), usual_ms=None),))
    assert [recipe.cost for recipe in recipes(found, 8192)] == [None]
    assert decide(None, found, 8192).recipe is None
    assert decide(True, found, 8192).recipe is not None


@pytest.mark.parametrize("kind", ["wide", "prefill"])
def test_what_depends_on_the_threads_of_wide_passes_is_no_recipe(kind: str) -> None:
    assert not recipes(made(cells("f16/f16", **{kind: 0.1})), 8192)  # type: ignore[arg-type]  # a kind, not `single`
    with pytest.raises(ConfigError, match="no exact recipe"):
        decide(True, made(cells("f16/f16", **{kind: 0.1})), 8192)  # type: ignore[arg-type]  # as above


def test_where_no_width_is_exact_nothing_is_drafted_and_it_is_said() -> None:
    found = decide(True, made(cells("f16/f16", frozenset()), prices=(DEFAULT,)), 8192)
    assert found.recipe is not None
    assert found.recipe.widths == {1}
    assert "nothing is drafted, which is allowed only without --exact" in found.why
    assert decide(None, made(cells("f16/f16", frozenset()), prices=(DEFAULT,)), 8192).recipe is None


@pytest.mark.parametrize(
    ("cost", "widths", "n_ctx", "on"),
    [
        (1.01, ALL, 10_000, True),
        (1.05, ALL, 10_000, False),
        (1.0, frozenset({2, 3}), 10_000, False),
        (1.0, ALL, 700, True),
    ],
)
def test_by_itself_only_where_it_costs_nothing(cost: float, widths: frozenset[int], n_ctx: int, on: bool) -> None:
    found = made(cells("f16/bf16", widths), prices=(DEFAULT, price("f16/bf16", 10.0 * cost, 20.0 * cost)), n_ctx=n_ctx)
    assert (decide(None, found, 8192).recipe is not None) is on
    assert decide(True, found, 8192).recipe is not None
    assert decide(False, found, 8192).recipe is None


@pytest.mark.parametrize(
    ("widths", "why"),
    [(ALL - {8}, "width 8 is not exact; "), (frozenset({2, 3}), "widths 4-8 are not exact; ")],
)
def test_free_but_not_exact_at_all_widths_that_pay_is_said(widths: frozenset[int], why: str) -> None:
    found = made(cells("f16/f16", widths), prices=(DEFAULT,))
    assert why in decide(None, found, 8192).why


def test_refusals_name_the_command_that_helps() -> None:
    for found, problem in ((None, None), (None, "run `edgespec certify` again"), (made(cells("f16/f16")), None)):
        with pytest.raises(ConfigError) as caught:
            decide(True, found, 8192, n_threads=4, problem=problem)
        assert str(caught.value).count("edgespec certify") == 1
        free = decide(None, found, 8192, n_threads=4, problem=problem)
        assert free.recipe is None
        assert free.why.count("edgespec certify") == 1


def test_a_cache_type_that_was_asked_for_is_kept() -> None:
    found = made(cells("f16/f16", single=0.9), cells("q8_0/q8_0"), prices=(DEFAULT, price("q8_0/q8_0", 20.0, 30.0)))
    best = decide(True, found, 8192, kv="q8_0/q8_0").recipe
    assert best is not None
    assert best.kv == "q8_0/q8_0"


def test_spelled() -> None:
    assert spelled(frozenset({2, 3, 4, 9})) == "widths 2-4, 9"
    assert spelled(frozenset()) == "no width over 1"
    assert kv_types("f16/bf16") == ("f16", "bf16")
    assert kv_types("q8_0") == ("q8_0", "q8_0")


# --- the controller and the round keep to it ---


@given(st.frozensets(st.integers(2, 16)), st.integers(0, 15), st.integers(1, 4))
def test_lengths_are_cut_to_exact_widths(exact: frozenset[int], n: int, n_always: int) -> None:
    length = exact_length(n, n_always, exact)
    assert length == 0 or n_always + length in exact
    assert all(n_always + longer not in exact for longer in range(length + 1, n + 1))
    assert exact_length(n, n_always, None) == n


@given(st.frozensets(st.integers(2, 16)), st.integers(1, 15))
def test_the_controller_chooses_the_best_of_the_exact_widths(exact: frozenset[int], n: int) -> None:
    cost = CostModel(CostTable({width: 1.0 + 0.01 * width for width in range(1, 18)}))
    draft = Draft(tuple(range(n)), tuple(range(-1, n - 1)), (0,) * n, (0.99,) * n)
    taken = Controller(cost, Acceptance(Prior(), 0.0)).trim("d", draft, 10, exact=exact)
    allowed = [width for width in exact if width <= 1 + n]
    assert 1 + len(taken.tokens) == max(allowed, default=1)


def test_all_up_to() -> None:
    assert [all_up_to(frozenset(found)) for found in ((), (3,), (1, 2, 3, 5), (2,))] == [1, 1, 3, 2]


def limited(ways: Ways, seed: int, recipe: Recipe, n_sessions: int) -> Unsteady:
    target = Unsteady(ways, 200 * n_sessions, Capabilities(8, tree=True), seed)
    target.capabilities = recipe.limit(target.capabilities)
    return target


WIDTHS = st.frozensets(st.integers(2, 8))
THREADS = st.frozensets(st.integers(1, 2), max_size=1)
WAYS = st.builds(
    Ways, WIDTHS, st.sampled_from([frozenset[int](), frozenset({2})]), st.just(frozenset[int]()),
    st.just(frozenset[int]()), st.booleans(), st.booleans(), size=st.just(3.0),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(WAYS, st.integers(0, 50), st.booleans(), st.sampled_from([Sampling(), Sampling(temperature=0.8, seed=4)]))
def test_whatever_logits_depend_on_the_exact_text_is_plains(
    ways: Ways, seed: int, odd: bool, sampling: Sampling
) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(2, 40) for _ in range(rng.randint(1, 40))] for _ in range(5)]
    recipe = decide(True, certified(ways, seed=seed), 32).recipe
    assert recipe is not None
    recipe = replace(recipe, n_ctx=150)
    assert recipe.widths == frozenset(range(1, 9)) - ways.widths
    plain = same_text.plain_texts(Unsteady(ways, 200, seed=seed), prompts, sampling, 40, 2)
    for n_sessions in (1, 4):
        target = limited(ways, seed, recipe, n_sessions)
        found = same_text.compare(
            "", target, recipe, prompts, plain, sampling, 40, 2, n_sessions=n_sessions, odd=odd, seed=seed
        )
        assert found.n_differing == 0
        assert found.widths <= recipe.widths
        assert found.n_together <= (1 if ways.company else all_up_to(recipe.widths))


def test_the_comparison_above_can_fail() -> None:
    ways = Ways(frozenset(range(2, 9)), size=3.0)
    recipe = Recipe("f16/f16", False, frozenset(range(1, 9)), True, 150, None)
    prompts = [[5, 6, 7, 8]]
    plain = same_text.plain_texts(Unsteady(ways, 200), prompts, Sampling(), 40, 2)
    found = same_text.compare("", limited(ways, 0, recipe, 1), recipe, prompts, plain, Sampling(), 40, 2, odd=True)
    assert found.n_differing > 0


@pytest.mark.parametrize("asked", [True, False])
def test_beyond_the_certified_length_nothing_is_drafted_if_exactness_was_asked_for(asked: bool) -> None:
    recipe = Recipe("f16/f16", False, frozenset({1, 2, 3}), True, 20, None, asked)
    prompts = [list(range(2, 22))]
    plain = same_text.plain_texts(Unsteady(Ways(), 200), prompts, Sampling(), 40, 2)
    found = same_text.compare("", limited(Ways(), 0, recipe, 1), recipe, prompts, plain, Sampling(), 40, 2, odd=True)
    assert (found.n_drafted == 0, found.n_differing) == (asked, 0)
    assert bool(found.widths - recipe.widths) is not asked  # of any width


def test_the_default_type_is_priced_by_turns_with_each_other_one() -> None:
    passes: list[str] = []

    class Priced(Unsteady):
        def __init__(self, kv: str, n_ctx: int) -> None:
            super().__init__(Ways(), n_ctx)
            self.kv = kv

        def eval(self, plans: Sequence[Plan]) -> list[Rows]:
            passes.append(self.kv)
            return super().eval(plans)

    def clock() -> float:  # a pass with the other type takes twice as long
        return 0.001 * sum(1 if kv == "f16/f16" else 2 for kv in passes)

    means = Means(
        lambda kv, n_ctx, n: Priced(kv, n_ctx * n), [1] * 64, Grid((8,), (2, 4), (1,), 1, 8, n_piece=8), clock
    )
    _, prices, _ = certify(("f16/f16", "q8_0/q8_0"), means, 1.0)
    assert [price.one_ms for price in prices] == pytest.approx([1.0, 2.0])
    assert [price.usual_ms for price in prices] == pytest.approx([2.0, 2.0])
    timed = "".join(kv[0] for kv in passes)
    assert "qfqfqfqf" in timed


def test_a_type_is_priced_alone_where_memory_does_not_hold_the_default_beside_it() -> None:
    n_open = 0

    class Small(Unsteady):
        def close(self) -> None:
            nonlocal n_open
            n_open -= 1

    def opener(kv: str, n_ctx: int, n_sessions: int) -> Unsteady:
        nonlocal n_open
        if n_open:
            raise ModelError("no memory for two")
        n_open += 1
        return Small(Ways(), n_ctx * n_sessions)

    grid = Grid((8,), (2, 4), (1,), 1, 8, n_piece=8)
    _, prices, _ = certify(("q8_0/q8_0",), Means(opener, [1] * 64, grid, lambda: 0.0), 1.0)
    assert [price.usual_ms for price in prices] == [None]
    assert n_open == 0


# --- the engine and the command line ---


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_maker.make(tmp_path_factory.mktemp("models") / "tiny.gguf")


def certify_as(model: Path, *found: list[Cell], prices: tuple[Price, ...] = (DEFAULT,)) -> None:
    """Save a made-up certificate for this model, build and machine."""
    one = made(*found, prices=prices, n_threads=64)
    certificate.save(
        replace(
            one,
            fingerprint=gguf_check.check(model).fingerprint,
            build=build_name(),
            machine=host.cpu_name(Sysfs()),
        )
    )


def opened(model: Path, **options: object) -> Engine:
    return Engine.open(model, EngineConfig(n_ctx=512, **options))  # type: ignore[arg-type]  # by name


def test_without_a_certificate_exact_refuses_in_one_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", str(tiny), "-p", "abc", "--exact", "--max-tokens", "4"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "edgespec certify" in err
    assert main.run(["run", str(tiny), "-p", "abc", "--max-tokens", "4"]) == 0


@pytest.mark.usefixtures("patient")
def test_the_engine_keeps_to_the_recipe_and_reports_it(tiny: Path) -> None:
    certify_as(tiny, cells("f16/bf16", frozenset({2, 3, 6})), prices=(DEFAULT, price("f16/bf16", 30.0, 60.0)))
    with opened(tiny, threads=1, exact=True) as engine:
        assert (engine.target.options.kv_type_k, engine.target.options.kv_type_v) == ("f16", "bf16")
        prompt = list(b"abcabcabc abcabcabc abcabcabc")
        limits = Limits(40, ignore_eog=True, fixed_draft=10)
        stream = engine.stream(prompt, Sampling(), limits, drafter=ScriptedDrafter(lambda _, n: [7] * n))
        for _ in stream:
            pass
        report = stream.result.report
        assert set(report.widths) <= {1, 2, 3, 6}
        assert report.widths[6] > 20
        assert report.drafted > 0
        assert report.exact
        assert report.exact_why is not None
        assert "f16/bf16, widths 2-3, 6" in report.exact_why
    with opened(tiny, threads=1) as engine:
        assert engine.exactness.recipe is None
        assert "costs 200 %" in engine.exactness.why
        assert engine.config.kv_type == "f16"


def test_a_free_recipe_is_used_without_being_asked_for(tiny: Path) -> None:
    certify_as(tiny, cells("f16/f16"))
    with opened(tiny, threads=1) as engine:
        assert engine.exactness.recipe is not None
        assert engine.target.capabilities.exact_widths == ALL | {1}
    with opened(tiny, threads=1, exact=False) as engine:
        assert engine.target.capabilities.exact_widths is None


def test_single_rows_keep_to_one_thread_where_that_is_the_recipe(tiny: Path) -> None:
    certify_as(tiny, cells("f16/f16", single=0.9))
    with opened(tiny, exact=True) as engine:
        governor = engine.machine.governor
        assert governor.full.one == 1
        assert governor.full.wide == max(1, len(engine.machine.topology.usable))
        now_s = 0.0
        for slow in (1.0, 9.0) * 200:  # other programs make the team smaller and larger again
            now_s += 0.5
            governor.observe(1, 10, slow, now_s)
            governor.observe(4, 10, slow, now_s)
            assert governor.team.one == 1
        assert engine.target.n_threads == 1


def test_several_sequences_have_cells_of_their_own_under_a_recipe(tiny: Path) -> None:
    certify_as(tiny, cells("f16/f16"))
    config = EngineConfig(n_ctx=1024, threads=1, exact=True)
    with Engine.open(tiny, config, n_sessions=2) as engine:
        assert not engine.target.options.kv_unified
        assert engine.target.capabilities.sessions_per_batch == 2
    certify_as(tiny, cells("f16/f16", company=0.3))
    with Engine.open(tiny, config, n_sessions=2) as engine:
        assert engine.target.capabilities.sessions_per_batch == 1


def test_more_threads_than_were_certified_are_no_recipe(tiny: Path) -> None:
    certify_as(tiny, cells("f16/f16"))
    found = gguf_check.check(tiny).fingerprint
    topology = opened_topology(tiny)
    config = EngineConfig(threads=65, exact=True)
    with pytest.raises(ConfigError, match="of 64 threads, 65 are wanted"):
        exactness(config, found, host.cpu_name(Sysfs()), build_name(), 512, topology, Status(False, ""))


@pytest.mark.parametrize(("made_with", "active", "counts"), [
    ("avx2", True, True), ("avx2", False, False), (None, True, True), (None, False, True),
])  # fmt: skip
def test_what_is_exact_with_our_kernels_is_not_claimed_without(
    made_with: str | None, active: bool, counts: bool, tiny: Path
) -> None:
    certify_as(tiny, cells("f16/f16"))
    found, _ = certificate.load(gguf_check.check(tiny).fingerprint, build_name(), host.cpu_name(Sysfs()))
    assert found is not None
    certificate.save(replace(found, kernels=made_with))
    config, topology = EngineConfig(), opened_topology(tiny)
    decision = exactness(
        config, found.fingerprint, found.machine, found.build, 512, topology, Status(active, "", "avx2")
    )
    assert ("avx2 kernels, off now: run `edgespec certify` again" in decision.why) is not counts


def opened_topology(model: Path) -> Topology:
    with opened(model, threads=1) as engine:
        return engine.machine.topology


@pytest.mark.parametrize("text", ["f16/bf16", "q8_0", "q8_0/f16"])
def test_cache_types_are_given_singly_or_as_a_pair(text: str) -> None:
    assert configuration.check("kv_type", text, "--kv-type") == text


@pytest.mark.parametrize("text", ["f16/", "/f16", "f16/bf16/f16", "q2/f16", 8, ""])
def test_other_cache_types_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="or two of them as K/V"):
        configuration.check("kv_type", text, "--kv-type")


def test_doctor_says_what_is_exact(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_MODEL", str(tiny))
    monkeypatch.setenv("EDGESPEC_N_CTX", "512")
    lines = " ".join(" ".join(doctor_lines()).split())
    assert "not certified: edgespec certify finds out" in lines
    certify_as(tiny, cells("f16/f16", frozenset({2, 3})), cells("q8_0/q8_0"))
    lines = " ".join(" ".join(doctor_lines()).split())
    assert "certified exact: f16/f16 widths 2-3; q8_0/q8_0 widths 2-16" in lines


def doctor_lines() -> list[str]:
    found = examine()
    return list(report(found, ()))


def test_bench_holds_differences_against_the_certified_deviation() -> None:
    near, far = (Difference("q", "g", "auto", (0,), 3, 5, 6, margin) for margin in (0.4, 5.0))
    runs = Record([run_of("plain"), run_of("auto")])
    fine = bench_report.build(runs, differences=[near], deviation=1.0)
    assert "All 1 known margins are within a certified deviation of 1.00 logits." in table(fine)
    odd = bench_report.build(runs, differences=[near, far], deviation=1.0)
    assert "NOT EXPLAINED by a certified deviation of 1.00 logits: q auto." in table(odd)
    assert bench_report.to_json(odd)["unexplained_differences"] == 1
    assert bench_report.to_json(bench_report.build(runs, differences=[far]))["unexplained_differences"] is None


# --- the default model ---

_TEXTS = (
    "Repeat this twice: the quick brown fox jumps over the lazy dog near the old river bank.",
    "Write the numbers from one to thirty in words, with commas between them.",
    "Write a short list of fruits, each with its colour: apple, pear, plum, cherry, apricot.",
    "def add(a, b):\n    return a + b\n\nNow write the same function with type hints, twice.",
)


def context(target: LlamaTarget, n: int) -> list[list[int]]:
    """Prompts around and beyond 256 tokens, where single rows may be split among threads."""
    filler = target.encode(" ".join(f"Line {i}: {text}" for i in range(12) for text in _TEXTS))
    return [[*filler[i : i + n], *target.encode(text)] for i, text in enumerate(_TEXTS)]


@pytest.mark.model
@pytest.mark.parametrize("kv", ["q8_0/q8_0", "f16/bf16", "f16/f16"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=11)], ids=["greedy", "sampled"])
def test_the_default_model_writes_the_same_text(default_model: Path, kv: str, sampling: Sampling) -> None:
    """Recipes as they are certified on x86 for Q4_1 weights; f16/f16 with one thread for single rows."""
    recipe = Recipe(kv, kv == "f16/f16", frozenset(range(1, 17)), True, 2048, None)
    kv_k, kv_v = kv_types(kv)
    options = TargetOptions(n_ctx=512, n_threads=2, kv_type_k=kv_k, kv_type_v=kv_v, n_rows_max=64, n_rs_seq=15)
    with load(default_model, options) as target:
        prompts = context(target, 250)
        plain = same_text.plain_texts(target, prompts, sampling, 64, 2)
    together = replace(options, n_ctx=4 * 512, n_seq_max=4, kv_unified=False)
    with load(default_model, together) as target:
        target.capabilities = recipe.limit(target.capabilities)
        target.use_team(Team(1, 2))
        for odd in (False, True):
            found = same_text.compare(
                "", target, recipe, prompts, plain, sampling, 64, 2, n_sessions=4, odd=odd, seed=3
            )
            assert found.n_tokens >= 100
            assert found.n_together == 4
            assert found.n_drafted > 20
            assert found.n_differing == 0
