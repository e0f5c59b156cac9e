"""Separate environments for the tests: for other Pythons (`python_matrix`) and other Sparks (`spark_matrix`)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repository import ROOT

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile")


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The script's own arguments, and those behind `--`, which are pytest's.

    >>> split_arguments(["3.12", "--", "-k", "segment"])
    (['3.12'], ['-k', 'segment'])
    """
    own = list(arguments)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]


def read_project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def read_requirements(extra: str) -> list[str]:
    """The requirements of the package with an extra. Extras that refer to the package itself are expanded."""
    project = read_project()
    found: list[str] = list(project["dependencies"])
    for each in project["optional-dependencies"][extra]:
        own = re.fullmatch(rf"{project['name']}\[(.+)\]", each)
        if own is None:
            found.append(each)
        else:
            found += [line for name in own[1].split(",") for line in read_requirements(name.strip())]
    return list(dict.fromkeys(found))


def run_pip(python: Path | str, *what: str, command: str = "install") -> None:
    """Run pip of an environment. Raises CalledProcessError."""
    subprocess.run([str(python), "-m", "pip", command, "--quiet", *what], cwd=ROOT, check=True)


def build_wheel(python: Path | str, directory: Path) -> Path:
    """Build a wheel of this tree for a Python, compiled with that Python's headers."""
    run_pip(python, "--no-deps", "--wheel-dir", str(directory), ".", command="wheel")
    (wheel,) = directory.glob("*.whl")
    return wheel


def install_wheel(python: Path | str, wheel: Path) -> None:
    """Install a wheel of this tree, also over another wheel of the same version."""
    run_pip(python, "--no-deps", "--force-reinstall", str(wheel))


def is_current(place: Path, wanted: str) -> bool:
    """Whether an environment exists and was made for these requirements."""
    stamp = _stamp(place)
    return stamp.exists() and stamp.read_text() == wanted


def mark_current(place: Path, wanted: str) -> None:
    """Save the requirements that an environment was made for."""
    _stamp(place).write_text(wanted)


def run_tests(
    python: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Run pytest, and show its output as it appears. Returns whether all tests passed, and the last line with the time.

    Args:
        python: of the environment.
        arguments: of pytest.
        environment: the variables of the process; None for those of this process.
    """
    begun = time.monotonic()
    command = [str(python), *PYTEST, *arguments]
    said = b""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        while some := running.stdout.read1():
            said += some
            sys.stdout.buffer.write(some)
            sys.stdout.buffer.flush()
    lines = said.decode(errors="replace").strip().splitlines()
    seconds = time.monotonic() - begun
    return running.returncode == 0, f"{lines[-1] if lines else 'no output'} [{seconds:.0f} s]"


def report(name: str, results: Mapping[str, tuple[bool, str]]) -> int:
    """Print a line per version. Returns the exit status: 0 if all passed."""
    for version, (passed, said) in results.items():
        print(f"{name} {version}: {said}", "" if passed else "FAILED", flush=True)
    return 0 if all(passed for passed, _ in results.values()) else 1


def _stamp(place: Path) -> Path:
    return place / "requirements.txt"
