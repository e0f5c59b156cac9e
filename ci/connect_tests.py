#!/usr/bin/env python3
"""Run the Spark tests on Spark Connect: against a server that is another process, and with a client that has no Java.

    python ci/connect_tests.py [--source] [-- PYTEST ARGUMENTS]

The client's environment is `.venv-connect-client`. The script makes it if it is missing, and keeps it. It has
`pyspark-client` and neither PySpark nor Java. The script builds the package as a wheel and installs it there. With
--source the client sees `src/` instead, as it was compiled in place.

Exit status: 0 if all tests passed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import venv
from pathlib import Path

from environments import (
    build_wheel,
    install_wheel,
    is_current,
    mark_current,
    read_project,
    report,
    run_pip,
    run_tests,
    split_arguments,
)
from repository import ROOT

# A client may be older than its server.
CLIENT = "pyspark-client>=4.0"


def main() -> int:
    own, given = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--source", action="store_true", help="test src/ instead of a wheel")
    arguments = parser.parse_args(own)
    client = _client()
    environment = dict(os.environ) | {"PGOUTPUT_FAST_CLIENT": str(client)}
    if arguments.source:
        environment["PYTHONPATH"] = str(ROOT / "src")
    else:
        with tempfile.TemporaryDirectory() as directory:
            install_wheel(client, build_wheel(sys.executable, Path(directory)))
    tests = given or ["tests/spark"]
    result = run_tests(sys.executable, ["--whole", "--spark-session=connect", *tests], environment)
    return report("Spark", {"Connect": result})


def _client() -> Path:
    """The Python of the client's environment. Makes the environment, or updates it if its requirements have changed."""
    place = ROOT / ".venv-connect-client"
    python = place / "bin" / "python"
    requirements = [CLIENT, *read_project()["dependencies"]]
    wanted = "\n".join(requirements)
    if not is_current(place, wanted):
        print(f"installing {CLIENT} ...", flush=True)
        if not python.exists():
            venv.create(place, with_pip=True)
        run_pip(python, *requirements)
        mark_current(place, wanted)
    return python


if __name__ == "__main__":
    sys.exit(main())
