"""`python -m edgespec`: the command line without an installed script."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from edgespec.cli.main import main

        main()
    except KeyboardInterrupt:  # before the command line could take care of it
        sys.exit(130)
