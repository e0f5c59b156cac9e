"""`python -m pgoutput_fast`: the command `pgoutput-fast`."""

from __future__ import annotations

import sys

from pgoutput_fast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
