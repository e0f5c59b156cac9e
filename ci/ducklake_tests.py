#!/usr/bin/env python3
"""Run the tests of DuckLake, whose extension needs an older DuckDB than the other tests.

    python ci/ducklake_tests.py [--source] [-- PYTEST ARGUMENTS]

The script installs the packages of the extra `ducklake` into `build/ducklake`, if they are missing, and keeps them. The
tests see them before those of this Python. With --source the tests see `src/` instead of the installed package, as it
was compiled in place.

Exit status: 0 if all tests passed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from environments import (
    is_current,
    mark_current,
    read_project,
    report,
    run_pip,
    run_tests,
    split_arguments,
)
from repository import ROOT

TESTS = (
    "-k",
    "ducklake",
    "tests/tables/current",
    "tests/merge/test_staged.py",
    "tests/cli/test_query.py::test_the_rows_of_the_server_in_ducklake",
    "tests/mirror/test_ducklake.py",
    "tests/mirror/test_renamed_columns.py::test_values_without_an_arrow_form",
)


def main() -> int:
    own, given = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--source", action="store_true", help="test src/ instead of the installed package")
    arguments = parser.parse_args(own)
    path = [str(_packages()), *([str(ROOT / "src")] if arguments.source else [])]
    # With this variable, the tests do not skip.
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(path), "PGOUTPUT_FAST_DUCKLAKE": "1"}
    return report("DuckLake", {"1.5.5": run_tests(Path(sys.executable), [*TESTS, *given], environment)})


def _packages() -> Path:
    """The directory of the packages. Installs them, or others if the requirements have changed."""
    place = ROOT / "build" / "ducklake"
    requirements = read_project()["optional-dependencies"]["ducklake"]
    wanted = "\n".join(requirements)
    if not is_current(place, wanted):
        print(f"installing {' '.join(requirements)} ...", flush=True)
        run_pip(sys.executable, "--no-deps", "--upgrade", "--target", str(place), *requirements)
        mark_current(place, wanted)
    return place


if __name__ == "__main__":
    sys.exit(main())
