"""docs/api.md lists all public names, each is documented and typed, and no page tells users to import another one."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import generate_api
import pgoutput_fast as pgo
from generate_api import (
    COMMAND,
    PAGE,
    PUBLIC,
    ROOT,
    SOURCE,
    Name,
    import_statements,
    missing_annotations,
    names,
    origin,
    page,
)
from pgoutput_fast import encode

NAMES = [each for module in PUBLIC for each in names(module)]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
)
CODE = sorted(SOURCE.rglob("*.py"))
# What pages call these modules.
ALIASES = {"pgo": "pgoutput_fast", "pgspark": "pgoutput_fast.spark"}
# Packages with an `__all__` from which users import nothing: Spark imports it.
NOT_FOR_USERS = {"pyspark_pgoutput"}


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text() == page(), f"docs/api.md is stale: run `{COMMAND}`"


def test_the_script_says_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate_api, "ROOT", tmp_path)
    monkeypatch.setattr(generate_api, "PAGE", tmp_path / "api.md")
    assert generate_api.main(["--check"]) == 1
    assert capsys.readouterr().out == f"api.md is stale: run `{COMMAND}`\n"
    assert generate_api.main([]) == 0
    assert generate_api.main(["--check"]) == 0


# ---- the names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_public_name_is_documented_and_typed(name: Name) -> None:
    where = ".".join(origin(name.module, name.name))
    assert name.sentence, f"{name} has no docstring: write one at {where}, then run `{COMMAND}`"
    missing = missing_annotations(getattr(importlib.import_module(name.module), name.name))
    assert missing == [], (
        f"{name} has no annotations for {missing}: add them at {where}, then run `{COMMAND}`"
    )


@pytest.mark.parametrize("module", PUBLIC)
def test_all_is_sorted_and_complete(module: str) -> None:
    public = importlib.import_module(module).__all__
    assert len(set(public)) == len(public), f"{module}.__all__ names something twice"
    path = generate_api.source_of(module)
    if path.name == "__init__.py":
        imported = {each.asname or each.name for node in import_statements(module) for each in node.names}
        left_out = sorted(name for name in imported - set(public) if not name.startswith("_"))
        assert left_out == [], f"{path.relative_to(ROOT)}: add {left_out} to __all__, then run `{COMMAND}`"


def test_every_package_with_public_names_is_on_the_page() -> None:
    packages = {
        ".".join(path.parent.relative_to(SOURCE).parts)
        for path in SOURCE.rglob("__init__.py")
        if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)
    }
    missing = sorted(packages - PUBLIC.keys() - NOT_FOR_USERS)
    assert missing == [], f"add {missing} to PUBLIC in ci/generate_api.py, then run `{COMMAND}`"


def test_one_name_is_one_thing() -> None:
    """A name of `capture` and of `snapshot` is the same object in both."""
    both = {each.name for each in names("pgoutput_fast.capture")} & {
        each.name for each in names("pgoutput_fast.snapshot")
    }
    assert both >= {"Snapshot", "SnapshotError"}
    for name in both:
        assert origin("pgoutput_fast.capture", name) == origin("pgoutput_fast.snapshot", name)


@pytest.mark.unsanitized
@pytest.mark.parametrize("module", PUBLIC)
def test_an_import_needs_only_its_extra(module: str) -> None:
    foreign = {"pyspark", "psycopg2"}
    code = f"import sys, {module}; print(*sorted({foreign} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    allowed = {
        "capture": {"psycopg2"},
        "mirror": {"psycopg2"},
        "snapshot": {"psycopg2"},
        "spark": {"pyspark"},
    }
    part = module.partition(".")[2].partition(".")[0]
    assert set(loaded) <= allowed.get(part, set())


def test_messages_are_made_as_the_page_says() -> None:
    page = (ROOT / "docs" / "decoding.md").read_text().partition("## Make messages\n")[2]
    *made, decoded = textwrap.dedent("".join(re.findall(r"^    .*\n", page, re.MULTILINE))).splitlines()
    context: dict[str, Any] = {"encode": encode, "pgo": pgo}
    exec("\n".join(made), context)
    assert eval(decoded, context).select(["id", "note"]).to_pylist() == [{"id": 1, "note": "first"}]


# ---- what pages say ----------------------------------------------------------------------------------------------


ORIGINS = {origin(each.module, each.name): str(each) for each in NAMES}
OUTSIDE = sorted(
    path
    for folder in ("benchmarks", "fuzz", "src/pgoutput_fast/demo", "src/pyspark_pgoutput")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_import_a_public_name_from_its_public_place(path: Path) -> None:
    """They may use private names, too, but what users can import they import as users do."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: import {ORIGINS[place]}, not {node.module}.{each.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pgoutput_fast")
        if node.module not in PUBLIC and generate_api.source_of(str(node.module)).exists()
        for each in node.names
        if (place := origin(str(node.module), each.name)) in ORIGINS
    ]
    assert not found, "\n" + "\n".join(found)


def problems(code: str, public: Mapping[str, set[str]], aliases: Mapping[str, str]) -> Iterator[str]:
    """What in a piece of code or text is imported or named from this package, and is not public."""

    def is_public(dotted: str) -> bool:
        module, _, name = dotted.rpartition(".")
        return dotted in public or name in public.get(module, ())

    aliases = dict(aliases)
    for module, imported in re.findall(r"from (pgoutput_fast[\w.]*) import (\([^)]*\)|[^\n#`]+)", code):
        for each in re.sub(r"#[^\n]*", "", imported).strip("() \n,").split(","):
            name, _, alias = each.strip().partition(" as ")
            if not is_public(f"{module}.{name}"):
                yield f"{module}.{name}"
            aliases[alias or name] = f"{module}.{name}"
    for module in re.findall(r"^\s*(?:>>> )?import (?:\w+, )*(pgoutput_fast[\w.]*)", code, re.MULTILINE):
        if module not in public:
            yield module
    code = re.sub(r"(from|import) pgoutput_fast[\w.]*", "", code)
    # Python prints the module of an exception before its message.
    for dotted in re.findall(r"(?<![\w.])pgoutput_fast(?:\.\w+)+(?!\w|\.\w|: )", code):
        parts = dotted.split(".")
        module = max((each for each in public if f"{dotted}.".startswith(f"{each}.")), key=len)
        depth = len(module.split("."))
        if len(parts) > depth and parts[depth] not in public[module]:
            yield dotted
    for alias, name in re.findall(r"(?<![\w./])(\w+)\.([A-Za-z]\w*)", code):
        module = aliases.get(alias, "")
        if module in public and name not in public[module] and f"{module}.{name}" not in public:
            yield f"{module}.{name}"


BY_MODULE = {module: {each.name for each in NAMES if each.module == module} for module in PUBLIC}


def code_of(text: str) -> Iterator[str]:
    """The code of a page: its blocks, and what stands between backticks."""
    yield from re.findall(r"```.*?```|`[^`\n]+`|^    [^\n]+", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_only_what_is_public(path: Path) -> None:
    found = sorted(set(problems("\n".join(code_of(path.read_text())), BY_MODULE, ALIASES)))
    assert found == [], f"{path.relative_to(ROOT)} names {found}: {_ADVICE}"


@pytest.mark.parametrize("module", PUBLIC)
def test_a_docstring_names_only_what_is_public(module: str) -> None:
    things = [importlib.import_module(module)]
    things += [getattr(things[0], each.name) for each in names(module)]
    things += [method for each in things if inspect.isclass(each) for method in vars(each).values()]
    for thing in things:
        examples = re.findall(r"^ *(?:>>>|\.\.\.) .*|^    .+", inspect.getdoc(thing) or "", re.MULTILINE)
        found = sorted(set(problems("\n".join(examples), BY_MODULE, {})))
        assert found == [], f"a docstring of {module} ({thing!r}) names {found}: {_ADVICE}"


def test_an_error_names_only_what_is_public() -> None:
    """Messages say what to call."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                said = re.findall(r"\b(?:pgo|pgspark|pgoutput_fast)\.\w+\(", node.value)
                found = sorted(set(problems("\n".join(said), BY_MODULE, ALIASES)))
                assert found == [], f"{path.relative_to(ROOT)}:{node.lineno} says {found}: {_ADVICE}"


_ADVICE = f"name something on docs/api.md, or put it into the __all__ of its package and run `{COMMAND}`"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from pgoutput_fast import decode, spark as s\ns.changes(wal)\n", []),
        ("from pgoutput_fast.segments.segment import list_segments", ["pgoutput_fast.segments.segment.list_segments"]),
        ("from pgoutput_fast import (\n    decode,  # good\n    News,\n)", ["pgoutput_fast.News"]),
        ("import pgoutput_fast.storage.paths", ["pgoutput_fast.storage.paths"]),
        ("pgo.decode(wal), pgo.native(wal)", ["pgoutput_fast.native"]),
        ("from pgoutput_fast import capture\ncapture.SegmentDirectory()", ["pgoutput_fast.capture.SegmentDirectory"]),
        ("`pgoutput_fast.storage.table_directory(a, b)`", []),
        ("    pgoutput_fast.base.errors.DecodeError: message 5", []),
        ("`pgoutput_fast.base.errors.reason_text`", ["pgoutput_fast.base.errors.reason_text"]),
        ('metrics_file="/var/lib/capture.prom"', []),
        ("pgspark.udf.xid(payload)", []),
    ],
)  # fmt: skip
def test_what_counts_as_named(code: str, found: list[str]) -> None:
    assert list(problems(code, BY_MODULE, ALIASES)) == found
