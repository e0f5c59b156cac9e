#!/usr/bin/env python3
"""Run the Spark tests on each supported version of Spark, each in an environment of its own.

    python ci/spark_matrix.py [--source] [VERSION ...] [-- PYTEST ARGUMENTS]

The environments are `.venv-spark-VERSION`. The script makes missing ones and keeps them. Each has the pyarrow and the
pandas that its Spark was released for. The oldest Spark gets the oldest pyarrow and pandas that this package supports.
The script builds the package once as a wheel and installs it in each environment. With --source the tests see `src/`
instead, as it was compiled in place.

Exit status: 0 if all tests passed everywhere.
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
    read_requirements,
    report,
    run_pip,
    run_tests,
    split_arguments,
)
from repository import ROOT

SPARKS = {
    "4.0": ("pyspark==4.0.*", "pyarrow==18.1.*", "pandas==2.2.*"),
    "4.1": ("pyspark==4.1.*", "pyarrow==21.*", "pandas==2.3.*"),
    "4.2": ("pyspark==4.2.*", "pyarrow==22.*", "pandas==2.3.*"),
    "4.3": ("pyspark==4.3.*",),
}
TESTS = (
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "moto[s3]>=5",
    "flask>=3",
    "flask-cors>=5",
    "deltalake>=1.0",
    "obstore>=0.5",
    "pyroaring>=1.0",
    "pyiceberg[pyarrow,sql-sqlite]>=0.12",
    "polars>=1.30",
    "pyyaml>=6",  # for Spark's declarative pipelines
)
# These Spark versions leave it to the garbage collector to close sockets, and Python warns about that.
IGNORED = "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"


def main() -> int:
    own, given = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help=f"one of {', '.join(SPARKS)}; default: all"
    )
    parser.add_argument("--source", action="store_true", help="test src/ instead of a wheel")
    arguments = parser.parse_args(own)
    unknown = sorted(set(arguments.versions) - set(SPARKS))
    if unknown:
        parser.error(f"unknown Spark version {', '.join(unknown)}; known versions: {', '.join(SPARKS)}")
    with tempfile.TemporaryDirectory() as directory:
        wheel = None if arguments.source else build_wheel(sys.executable, Path(directory))
        results = {version: _run(version, wheel, given) for version in arguments.versions or SPARKS}
    return report("Spark", results)


def _run(version: str, wheel: Path | None, given: list[str]) -> tuple[bool, str]:
    """Run the tests on one Spark version. Returns whether they passed, and pytest's last line."""
    python = _environment(version)
    environment = dict(os.environ)
    if wheel is None:
        environment["PYTHONPATH"] = str(ROOT / "src")
    else:
        install_wheel(python, wheel)
    found = [*(ROOT / "tests" / "spark").glob("test_*.py"), ROOT / "tests" / "schema" / "test_plain.py"]
    tests = sorted(str(path.relative_to(ROOT)) for path in found)
    ignored = [argument for each in IGNORED for argument in ("-W", each)]
    print(f"Spark {version} ...", flush=True)
    return run_tests(python, ["--whole", *ignored, *(given or tests)], environment)


def _environment(version: str) -> Path:
    """The Python of an environment. Makes the environment, or updates it if its requirements have changed."""
    place = ROOT / f".venv-spark-{version}"
    python = place / "bin" / "python"
    requirements = [*SPARKS[version], *read_requirements("demo"), *read_requirements("connect"), *TESTS]
    wanted = "\n".join(requirements)
    if not is_current(place, wanted):
        print(f"installing {' '.join(SPARKS[version])} ...", flush=True)
        if not python.exists():
            venv.create(place, with_pip=True)
        run_pip(python, *requirements)
        mark_current(place, wanted)
    return python


if __name__ == "__main__":
    sys.exit(main())
