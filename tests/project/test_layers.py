"""Who imports whom: every import points downwards, none goes in a circle, and `_core` imports only the lowest layers.

Every import counts: those inside of functions, those for type checkers alone, and those of stubs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from layers import LAYERS, PACKAGE, own_imports, place, read_imports
from support.paths import SOURCE

# What `_core` may import beside itself, by package.
BELOW_CORE = {"base", "catalog", "protocol", "schema"}

# Packages that only some groups may import.
FOREIGN = {
    "deltalake": {"demo", "mirror", "tables"},
    "obstore": {"tables"},
    "pyroaring": {"tables"},
    "duckdb": {"cli", "demo", "tables"},
    "pandas": {"spark"},
    "psycopg2": {"capture", "postgres", "snapshot"},
    "pyspark": {"demo", "spark"},
    "typer": {"cli"},
}


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others: the strongly connected components of more than one."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        found: set[str] = set()
        left = [module]
        while left:
            new = set(imports.get(left.pop(), ())) - found
            found |= new
            left += new
        reached[module] = found
    rings = {
        frozenset(other for other in reached[module] if module in reached.get(other, ()))
        for module in imports
        if module in reached[module]
    }
    return sorted(sorted(ring) for ring in rings)


def misplaced(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """The imports that point upwards or sideways."""
    wrong = []
    for module, others in imports.items():
        for other in others:
            here, there = place(module), place(other)
            if here is None or there is None:
                continue
            if there[0] < here[0] or (there[0] == here[0] and there != here):
                wrong.append(f"{module} ({here[1]}) imports {other} ({there[1]})")
    return sorted(wrong)


Imports = dict[str, set[str]]


# Not read while tests are collected: every process of a test run collects all tests.
@pytest.fixture(scope="module")
def imports() -> Imports:
    return read_imports(SOURCE)


@pytest.fixture(scope="module")
def own(imports: Imports) -> Imports:
    return own_imports(imports)


def test_every_module_has_a_layer(own: Imports) -> None:
    assert [module for module in own if place(module) is None] == []


def test_the_layers_name_only_modules_that_there_are(own: Imports) -> None:
    names = [name for groups in LAYERS for patterns in groups.values() for name in patterns]
    assert [name for name in names if not any(fnmatchcase(module, name) for module in own)] == []
    assert sorted(BELOW_CORE - own.keys()) == []


def test_imports_within_the_package_name_modules_that_there_are(own: Imports) -> None:
    assert {(module, other) for module, others in own.items() for other in others - own.keys()} == set()


def test_core_imports_only_the_lowest_layers(own: Imports) -> None:
    arrows = [
        f"{module} imports {other}"
        for module, others in own.items()
        if module.split(".")[0] == "_core"
        for other in sorted(others)
        if other.split(".")[0] != "_core" and other.split(".")[0] not in BELOW_CORE
    ]
    assert arrows == []


def test_imports_point_downwards(own: Imports) -> None:
    assert misplaced(own) == []


def test_no_modules_import_each_other(own: Imports) -> None:
    assert circles(own) == []


@pytest.mark.parametrize("package", FOREIGN)
def test_who_imports_a_foreign_package(imports: Imports, package: str) -> None:
    found = {
        module
        for module, others in imports.items()
        if module.split(".")[0] == PACKAGE and any(each.split(".")[0] == package for each in others)
    }
    groups = {module: (place(module.removeprefix(PACKAGE).lstrip(".")) or (0, ""))[1] for module in found}
    assert {module: group for module, group in groups.items() if group not in FOREIGN[package]} == {}
    assert found


# ---- the reader itself -------------------------------------------------------------------------------------------


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_every_form_of_import_is_seen(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "p/__init__.py": "from .a import name",
            "p/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n",
            "p/b.py": "def f():\n    import p.c as c, p.d\n    try:\n        from . import e\n    finally:\n        pass\n",
            "p/c.py": "'''\nimport p.a\n'''\n# import p.b\n",
            "p/d.py": "from p.e import (\n    one,\n    two,\n)\n",
            "p/e.py": "import other",
            "p/q/__init__.py": "from .. import a\nfrom .n import x",
            "p/q/n.pyx": "cimport p.q.o, p.q.r as s\nfrom p cimport a, b  # and not p.c\nfrom p.c import (\n    x,\n    y,\n)\n",
            "p/q/n.pxd": "from p.q.t cimport Thing\ncdef extern from 'x.hpp':\n    pass\n",
            "p/q/n.pyi": "from p.d import x\n",
            "p/q/o.pyx": "    from ..a import thing\n    from .t cimport (thing, other)\n",
            "p/q/r.pyx": "",
            "p/q/t.pxd": "# from p import a\n",
        },
    )
    assert read_imports(tmp_path) == {
        "p": {"p.a"},
        "p.a": {"typing", "p.b"},
        "p.b": {"p.c", "p.d", "p.e"},
        "p.c": set(),
        "p.d": {"p.e"},
        "p.e": {"other"},
        "p.q": {"p.a", "p.q.n"},
        "p.q.n": {"p.q.o", "p.q.r", "p.a", "p.b", "p.c", "p.q.t", "p.d"},
        "p.q.o": {"p.a", "p.q.t"},
        "p.q.r": set(),
        "p.q.t": set(),
    }


def test_circles_are_found() -> None:
    imports = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"], "f": ["a"], "g": []}
    assert circles(imports) == [["a", "b", "c"], ["d", "e"]]


def test_what_points_upwards_is_found() -> None:
    assert misplaced(
        {
            "_core.tagging.scan": ["decoding.state", "schema.tables", "_core.tagging.tag"],
            "snapshot.load": ["capture.service", "merge.plan"],
        }
    ) == [
        "_core.tagging.scan (_core) imports decoding.state (decoding)",
        "snapshot.load (snapshot) imports capture.service (capture)",
        "snapshot.load (snapshot) imports merge.plan (merge)",
    ]
