"""What the processor's cores can do, by the kernel's names: the flags of /proc/cpuinfo."""

from __future__ import annotations

import re

from edgespec.device.sysfs import Sysfs


def cpu_features(sysfs: Sysfs) -> frozenset[str] | None:
    """Features that every listed core has; None where the file does not say.

    x86 calls the line "flags", Arm "Features". Arm kernels give all cores what the least of them has.

    Source: Linux Documentation/arch/arm64/elf_hwcaps.rst and arch/x86/include/asm/cpufeatures.h for the names.
    """
    text = sysfs.read_text("/proc/cpuinfo") or ""
    lines = re.findall(r"^(?:flags|Features)[ \t]*:[ \t]*(\S.*)$", text, re.M)
    return frozenset.intersection(*(frozenset(line.split()) for line in lines)) if lines else None
