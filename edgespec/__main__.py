"""`python -m edgespec`: the command line without an installed script."""

from __future__ import annotations

from edgespec.cli.main import main

if __name__ == "__main__":
    main()
