"""Arm part numbers, only as far as they decide: which of two cores in one chip is the larger design.

A number says nothing about a chip on its own: a Cortex-A720 is the large core of one chip and the small one of another.
So numbers give a rank that is compared within a chip; a number that is not listed has no rank.

Source: Linux arch/arm64/include/asm/cputype.h and arch/arm/include/asm/cputype.h (numbers), Arm's product pages
(A5xx efficiency, A7xx balance, X performance); for Qualcomm's Kryo and Apple's cores the names in public device dumps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LITTLE, BIG, PRIME = range(3)

_NUMBERS: Mapping[str, tuple[str, str, str]] = {
    "0x41": (  # Arm: in-order cores; out-of-order ones; the X line
        "c05 c07 d01 d03 d04 d05 d46 d80 d88 d8a d8f",
        "c08 c09 c0d c0e c0f d07 d08 d09 d0a d0b d0d d0e d41 d42 d47 d4b d4d d81 d87 d89 d8b",
        "d44 d48 d4c d4e d82 d85 d8c d90",
    ),
    "0x48": ("", "d40", ""),  # HiSilicon: a Cortex-A76
    "0x51": ("201 211 801 803 805", "205 800 802 804", ""),  # Qualcomm: Kryo silver, gold
    "0x53": ("", "", "001 002 003 004"),  # Samsung: Mongoose, beside A53 or A55 and later A75 or A76
    "0x61": ("020 022 024 028 030 032 034 038", "021 023 025 029 031 033 035 039", ""),  # Apple: Icestorm, Firestorm on
}
_RANKS = {
    f"{implementer}:0x{number}": rank
    for implementer, ranks in _NUMBERS.items()
    for rank, numbers in enumerate(ranks)
    for number in numbers.split()
}


def rank(part: str | None) -> int | None:
    """LITTLE, BIG or PRIME of "0x41:0xd05"; None where the number decides nothing."""
    return _RANKS.get(part or "")


def from_midr(text: str | None) -> str | None:
    """Part of one core's `regs/identification/midr_el1`, as "0x41:0xd05".

    Source: Linux Documentation/arch/arm64/cpu-feature-registers.rst (implementer in bits 31..24, part in 15..4).
    """
    if text is None or not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text) or not 0 < int(text, 16) < 1 << 32:
        return None
    midr = int(text, 16)
    return f"0x{midr >> 24:02x}:0x{midr >> 4 & 0xFFF:03x}"


def from_cpuinfo(text: str | None) -> dict[int, str]:
    """Parts by core from /proc/cpuinfo.

    Only a block that names exactly one processor counts: older kernels list all processors and then describe the core
    that happened to run the read.
    Source: Linux commit 44b82b7700d0 ("arm64: Fix up /proc/cpuinfo") for the two layouts.
    """
    parts = {}
    for block in re.split(r"\n\s*\n", text or ""):
        processors = re.findall(r"^processor\s*: *([0-9]{1,4})$", block, re.M)
        implementer = re.search(r"^CPU implementer\s*: *0x([0-9a-fA-F]{1,2})$", block, re.M)
        number = re.search(r"^CPU part\s*: *0x([0-9a-fA-F]{1,3})$", block, re.M)
        if len(processors) == 1 and implementer and number:
            parts[int(processors[0])] = f"0x{int(implementer[1], 16):02x}:0x{int(number[1], 16):03x}"
    return parts
