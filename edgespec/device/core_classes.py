"""Sorts cores into performance and efficiency from whatever evidence there is. Pure: values in, classes out.

Every value may be missing, stale or wrong, so nothing is split on one core's word, on part of the cores where the
missing ones could turn the order around, or against a second witness. Where doubt remains the cores are one class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgespec.device import parts

_ALIKE = 0.97
"""Values within 3 % are one tier; the little and middle cores of a Kirin 980 are 5 % apart (1805, 1901 MHz)."""
_CLEAR = 0.8
"""The slowest cores are another class below 80 % of the fastest: a Snapdragon 8 Elite, which has no efficiency cores,
is at 0.82, a Snapdragon 430 with two clusters of A53 at 0.78. Source: device dumps of pytorch/cpuinfo, ClusterTune."""
_CLEAR_UNSEEN = 0.75
"""The same for large against larger cores while others are unseen (A715 beside X3: 0.81; A720 as small core: 0.70)."""
_TIER = 0.9
"""Within one class, a tier of its own: below 90 % of the fastest. Favoured cores of PCs are nearer (5.0 of 5.2 GHz)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the present cores; a core that is missing from a mapping is unknown there."""

    cores: tuple[int, ...]
    capacity: Mapping[int, int] = field(default_factory=dict)
    max_khz: Mapping[int, int] = field(default_factory=dict)
    part: Mapping[int, str] = field(default_factory=dict)
    highest_perf: Mapping[int, int] = field(default_factory=dict)
    """ACPI CPPC, in the firmware's own unit."""
    alike: tuple[frozenset[int], ...] = ()
    """Cores that share a clock or a physical core: their values should be equal."""
    akin: tuple[frozenset[int], ...] = ()
    """Cores that share a cache, cluster or package, nearest first: a missing value may be taken over."""
    pc_performance: frozenset[int] = frozenset()
    """Intel's own word: cores of `cpu_core`, and of `cpu_atom` and the like below."""
    pc_efficiency: frozenset[int] = frozenset()
    pc: bool = False
    """Whether this is x86: a clock per core, favoured cores, up to two kinds of efficiency core."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Disjoint sets of cores; what is in neither of the first two is unknown."""

    performance: frozenset[int]
    efficiency: frozenset[int]
    middle: frozenset[int]
    prime: frozenset[int]
    source: str
    notes: tuple[str, ...]


def classify(evidence: Evidence) -> Classes:
    """Classes of all cores; one class, `performance`, where nothing tells them apart."""
    cores = frozenset(evidence.cores)
    kin = (*evidence.alike, *evidence.akin)
    known_ranks = {cpu: rank for cpu, part in evidence.part.items() if (rank := parts.rank(part)) is not None}
    sorter = _Sorter(
        cores=cores,
        seen=frozenset().union(
            evidence.part, evidence.capacity, evidence.max_khz, evidence.highest_perf, *evidence.alike
        ),
        part=evidence.part,
        ranks=_taken_over(known_ranks, kin, cores),
        numbers={
            name: _taken_over(_agreed(values, evidence), kin, cores)
            for name, values in (("cpu_capacity", evidence.capacity), ("cpuinfo_max_freq", evidence.max_khz))
        },
        pc=evidence.pc,
        notes=[],
    )
    return sorter.classes(evidence, _taken_over(_agreed(evidence.highest_perf, evidence), kin, cores))


def _agreed(values: Mapping[int, int], evidence: Evidence) -> dict[int, int]:
    """Values after those that must be equal were made so: the majority's, or none where there is none."""
    agreed = dict(values)
    for group in evidence.alike:
        # Two designs may share a clock (A715 and A710 in one cluster); their capacities need not be equal.
        for part in {evidence.part.get(cpu) for cpu in group}:
            same = [cpu for cpu in group if evidence.part.get(cpu) == part and cpu in agreed]
            if len({agreed[cpu] for cpu in same}) <= 1:
                continue
            value, n = Counter(agreed[cpu] for cpu in same).most_common(1)[0]
            for cpu in same:
                if 2 * n > len(same):
                    agreed[cpu] = value
                else:
                    del agreed[cpu]
    return agreed


def _taken_over(values: Mapping[int, int], groups: Iterable[frozenset[int]], cores: frozenset[int]) -> dict[int, int]:
    """Values with gaps filled from the nearest group whose known members agree."""
    filled = {cpu: value for cpu, value in values.items() if cpu in cores}
    for group in groups:
        known = {filled[cpu] for cpu in group if cpu in filled}
        if len(known) == 1:
            value = known.pop()
            filled.update({cpu: value for cpu in group & cores if cpu not in filled})
    return filled


@dataclass(slots=True)
class _Sorter:
    cores: frozenset[int]
    seen: frozenset[int]
    """Cores of which anything was read, right or wrong."""
    part: Mapping[int, str]
    ranks: dict[int, int]
    numbers: dict[str, dict[int, int]]
    pc: bool
    notes: list[str]

    def classes(self, evidence: Evidence, highest_perf: Mapping[int, int]) -> Classes:
        fast, slow = evidence.pc_performance & self.cores, evidence.pc_efficiency & self.cores
        if fast and slow and not fast & slow:
            return self._answer(fast, slow, "cpu_core and cpu_atom")
        for name in self.numbers:
            values = self.numbers[name]
            low = self._slow_by(name, values)
            if low:
                return self._answer(frozenset(values) - low, low, name)
        small = self._slow_by_rank()
        if small is not None:
            return self._answer(frozenset(self.ranks) - small, small, "part numbers")
        low = self._slow_by("acpi_cppc", highest_perf) if self.pc else frozenset()
        if low:
            return self._answer(frozenset(highest_perf) - low, low, "acpi_cppc")
        return self._one_class()

    def _slow_by(self, name: str, values: Mapping[int, int]) -> frozenset[int]:
        """Efficiency cores by one number; empty where it does not tell."""
        if not values or min(values.values()) >= _CLEAR * max(values.values()):
            return frozenset()
        if self.pc:
            low = frozenset(cpu for cpu, value in values.items() if value < _CLEAR * max(values.values()))
        else:
            # The slowest tier only: middle cores may be half as fast as the fastest (A76 beside X1: 498 of 1024).
            low = frozenset(cpu for cpu, value in values.items() if _ALIKE * value <= min(values.values()))
        high = frozenset(values) - low
        unseen = self.cores - set(values)
        if unseen and not self.pc:
            # The slowest cores that are seen may be middle ones.
            self.notes.append(f"{name} is not known for {_list(unseen)}")
            return frozenset()
        backed = self._rank_order(low, high)
        if backed is False:
            self.notes.append(f"{name} contradicts the part numbers")
            self.numbers[name] = {}
            return frozenset()
        if backed is None and self._contradicted(name, low, high):
            # Which of the two is wrong cannot be known.
            self.notes.append(" and ".join(self.numbers) + " contradict each other")
            self.numbers = {name: {} for name in self.numbers}
            return frozenset()
        if backed is None and min(len(low), len(high)) < 2:
            self.notes.append(f"{name} of one core differs from all others")
            self.numbers[name] = {}
            return frozenset()
        return low

    def _rank_order(self, low: frozenset[int], high: frozenset[int]) -> bool | None:
        """Whether part numbers say the same; None where they do not say."""
        lows = [self.ranks[cpu] for cpu in low if cpu in self.ranks]
        highs = [self.ranks[cpu] for cpu in high if cpu in self.ranks]
        if (lows and highs and max(lows) > min(highs)) or len(set(lows)) > 1:
            return False
        whole = len(lows) == len(low) and len(highs) == len(high)
        return True if whole and max(lows) < min(highs) else None

    def _contradicted(self, name: str, low: frozenset[int], high: frozenset[int]) -> bool:
        others = [values for other, values in self.numbers.items() if other != name]
        return any(
            _ALIKE * values[a] > values[b] for values in others for a in low & set(values) for b in high & set(values)
        )

    def _slow_by_rank(self) -> frozenset[int] | None:
        """Efficiency cores by part number, none among different large ones; None where it does not tell."""
        if len(set(self.ranks.values())) < 2:
            return None
        lowest = min(self.ranks.values())
        low = frozenset(cpu for cpu, rank in self.ranks.items() if rank == lowest)
        if lowest == parts.LITTLE or not self.cores - set(self.ranks):
            return low
        # Large and larger cores, and some that are not seen: the large ones may be the middle.
        khz = self.numbers["cpuinfo_max_freq"]
        slow, fast = ([khz[cpu] for cpu in side if cpu in khz] for side in (low, set(self.ranks) - low))
        return low if slow and fast and max(slow) < _CLEAR_UNSEEN * min(fast) else frozenset()

    def _one_class(self) -> Classes:
        complete = [name for name, values in self.numbers.items() if not self.cores - set(values)]
        if not complete and self.cores <= set(self.part) and len(set(self.part.values())) == 1:
            complete = ["part numbers"]
        unseen = self.cores - self.seen
        if unseen:
            self.notes.append(f"nothing is known of {_list(unseen)}; all cores are taken as one class")
        return self._answer(self.cores, frozenset(), complete[0] if complete else "nothing")

    def _answer(self, performance: frozenset[int], efficiency: frozenset[int], source: str) -> Classes:
        prime = self._prime(performance, source)
        middle = performance - prime if prime else frozenset[int]()
        unknown = self.cores - performance - efficiency
        if unknown:
            self.notes.append(f"the class of {_list(unknown)} is not known")
        return Classes(performance, efficiency, middle, prime, source, tuple(self.notes))

    def _prime(self, performance: frozenset[int], source: str) -> frozenset[int]:
        """The fastest tier of `performance`; empty where it has only one."""
        if self.pc:
            return frozenset()  # favoured cores are no tier
        ranks = {cpu: self.ranks[cpu] for cpu in performance if cpu in self.ranks}
        if len(ranks) == len(performance) and len(set(ranks.values())) > 1:
            return frozenset(cpu for cpu, rank in ranks.items() if rank == max(ranks.values()))
        # A number that told the classes apart also tells whether there are tiers.
        numbers = (
            [self.numbers[source]] if source in self.numbers and performance < self.cores else self.numbers.values()
        )
        for all_values in numbers:
            values = {cpu: all_values[cpu] for cpu in performance if cpu in all_values}
            if len(values) < len(performance):
                continue
            top = frozenset(cpu for cpu, value in values.items() if value >= _ALIKE * max(values.values()))
            rest = [value for cpu, value in values.items() if cpu not in top]
            if len(rest) > 1 and max(rest) < _TIER * max(values.values()):
                return top
        return frozenset()


def _list(cpus: Iterable[int]) -> str:
    """Cores as a person reads them: "core 3", "cores 0-3,7"."""
    numbers = sorted(cpus)
    runs: list[list[int]] = []
    for cpu in numbers:
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ("core " if len(numbers) == 1 else "cores ") + ",".join("-".join(map(str, run)) for run in runs)
