"""Makes another form of a GGUF model with llama.cpp's own quantiser: `requantise.py SRC DST [--type Q8_0] [--pure]`.

For benchmarks and checks: the wide passes of Q4_0 are cheaper than those of most other forms. Re-quantising costs some
quality.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from pathlib import Path

import llama_cpp.llama_cpp as native  # noqa: TID251 - the quantiser is no part of the runtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("target", type=Path, help="where to write; must not exist")
    parser.add_argument("--type", choices=("Q4_0", "Q8_0", "Q4_K_M"), default="Q4_0")
    parser.add_argument("--pure", action="store_true", help="every matrix in that type, the embedding too")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if not args.source.is_file():
        parser.error(f"{args.source}: no such file")
    if args.target.exists():
        parser.error(f"{args.target} exists already")
    params = native.llama_model_quantize_default_params()
    params.ftype = getattr(native, f"LLAMA_FTYPE_MOSTLY_{args.type}")
    params.allow_requantize = True
    params.pure = args.pure
    params.nthread = args.threads
    part = args.target.with_name(args.target.name + ".part")
    code = native.llama_model_quantize(os.fsencode(args.source), os.fsencode(part), ctypes.byref(params))
    if code != 0:
        part.unlink(missing_ok=True)
        raise SystemExit(f"error: llama.cpp could not quantise {args.source} (code {code})")
    part.replace(args.target)
    print(f"{args.target}: {args.target.stat().st_size / 1e6:.1f} MB (from {args.source.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
