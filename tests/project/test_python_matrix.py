"""What runs tests on other Pythons: it tests what pyproject.toml promises, and says what it cannot test."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "ci" / "python_matrix.py"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_python_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_oldest_are_the_lower_bounds(matrix: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [*project["dependencies"], *project["optional-dependencies"]["capture"]]
    pinned = {each.partition("==")[0]: each.partition("==")[2] for each in matrix._requirements("oldest")}
    for each in bounds:
        name, _, version = each.partition(">=")
        assert pinned[name] == (version if "." in version else f"{version}.0")
    assert project["requires-python"] == f">={matrix._oldest_python()}"


def test_this_python_is_found(matrix: ModuleType) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = matrix.find_python(version)
    assert found is not None
    assert matrix._says(found, "import sys; print('%d.%d' % sys.version_info[:2])") == version
    assert matrix.find_python("3.99") is None


@pytest.mark.parametrize(
    ("wanted", "status", "said"), [("3.99", 1, "MISSING"), ("newest", 2, "is neither oldest nor")]
)
def test_a_python_that_is_missing_is_said(wanted: str, status: int, said: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), wanted], capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_its_files_exist(matrix: ModuleType) -> None:
    assert [each for each in matrix.FILES if not (ROOT / each).exists()] == []
