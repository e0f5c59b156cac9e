#!/usr/bin/env python3
"""Write docs/api.md: every name that users may import, with its signature, one sentence and a page.

    python ci/generate_api.py [--check]

The names come from the `__all__` of the modules in `PUBLIC`, the signatures and sentences from the objects. All modules
must be importable: pyspark, pandas and psycopg2 are needed. With --check nothing is written; the exit status is 1 if
the page is stale.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

from repository import ROOT, SOURCE, update_page

DOCS = ROOT / "docs"
PAGE = DOCS / "api.md"
COMMAND = "python ci/generate_api.py"

# The modules from which users import, in the order of the page, and the pages that explain their names. A name is
# explained on the first page that mentions it; `_page_of` handles other names.
PUBLIC: dict[str, tuple[str, ...]] = {
    "pgoutput_fast": ("decoding.md", "types.md", "follow.md"),
    "pgoutput_fast.segments": ("segments.md", "examples.md"),
    "pgoutput_fast.capture": ("capture.md", "segments.md"),
    "pgoutput_fast.snapshot": ("capture.md",),
    "pgoutput_fast.mirror": ("mirror.md", "mirror/concepts.md", "mirror/failures.md", "current-tables.md"),
    "pgoutput_fast.spark": ("spark.md", "streaming.md"),
    "pgoutput_fast.spark.udf": ("spark.md",),
    "pgoutput_fast.storage": ("capture.md",),
    "pgoutput_fast.encode": ("decoding.md",),
    "pgoutput_fast.demo.servers": ("../CONTRIBUTING.md",),
}

# Names that no page mentions and that belong to another page than the first of their module.
EXPLAINED = {"TypeField": "types.md", "UserTypes": "types.md"}

_HEAD = f"""\
# What you can import

This page lists every name that you may import from this package. `{COMMAND}` writes it. Do not edit
it by hand.

A name on this page is public. All other modules and names are private, whatever they are called: they may change in
any version. `help` in Python shows the rest of a docstring and the methods of a class: `help(pgoutput_fast.Decoder)`.

`import pgoutput_fast` needs only pyarrow and numpy. `pgoutput_fast.spark` needs the extra `spark`.
`pgoutput_fast.capture` and `pgoutput_fast.snapshot` need the extra `capture`, and `pgoutput_fast.mirror` needs the
extra `mirror`. `pgoutput_fast.demo.servers` needs the programs of a PostgreSQL server. Spark finds `format("pgoutput")`
without an import.
"""


@dataclass(frozen=True)
class Name:
    """A public name of a module. `page` is relative to docs/; `sentence` is empty if the name has no docstring."""

    module: str
    name: str
    signature: str
    sentence: str
    page: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/api.md from the packages.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    check = parser.parse_args(arguments).check
    return update_page(PAGE, ROOT, page(), COMMAND, check=check)


def page() -> str:
    """The text that docs/api.md should have."""
    parts = [_HEAD]
    for module in PUBLIC:
        doc = inspect.getdoc(importlib.import_module(module)) or ""
        parts.append(f"## `{module}`\n\n{doc.partition(chr(10))[0]}\n")
        rows = ["| name | meaning | page |", "|---|---|---|"]
        rows += [
            f"| `{_cell(each.signature)}` | {_cell(each.sentence)} | [{Path(each.page).name}]({each.page}) |"
            for each in names(module)
        ]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def names(module: str) -> Iterator[Name]:
    """The public names of a module, in the order of its `__all__`."""
    imported = importlib.import_module(module)
    for name in imported.__all__:
        thing = getattr(imported, name)
        yield Name(
            module, name, signature(module, name), sentence(module, name, thing), _page_of(module, name)
        )


def sentence(module: str, name: str, thing: Any) -> str:
    """The first line of a docstring. A constant's docstring is below its assignment."""
    doc = inspect.getdoc(thing) if _has_docstring(thing) else constant_docstring(*origin(module, name))
    return (doc or "").partition("\n")[0]


def signature(module: str, name: str) -> str:
    """The line that shows how to use a name: a call with its types, or the name alone."""
    thing = getattr(importlib.import_module(module), name)
    if not _is_called(thing):
        return name
    found = inspect.signature(thing)
    shown = ", ".join(_parameters(found))
    returned = "" if inspect.isclass(thing) else f" -> {annotation(found.return_annotation)}"
    return f"{name}({shown}){returned}"


def missing_annotations(thing: Any) -> list[str]:
    """The parts of a function, or of a class's constructor and public methods, without annotation."""
    if not _is_called(thing):
        return []
    if not inspect.isclass(thing):
        return _unannotated(thing.__name__, thing, returns=True)
    found = [] if issubclass(thing, tuple) else _unannotated("__init__", thing, returns=False)
    for name, value in vars(thing).items():
        called = (
            value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        )
        if not name.startswith("_") and inspect.isfunction(called):
            found += _unannotated(name, called, returns=True)
    return found


def origin(module: str, name: str) -> tuple[str, str]:
    """Returns (module, name) of the definition of an imported name, by the import statements of the sources."""
    found = imported_names(module).get(name)
    return (module, name) if found is None else origin(*found)


@cache
def imported_names(module: str) -> dict[str, tuple[str, str]]:
    """The imports of a module from other modules: name -> (module, name there)."""
    return {
        each.asname or each.name: (node.module, each.name)
        for node in import_statements(module)
        if (node.module or "").startswith("pgoutput_fast")
        for each in node.names
        if node.module is not None and node.module != module
    }


def import_statements(module: str) -> list[ast.ImportFrom]:
    """The `from ... import` statements that run with a module, including those that catch a missing package."""
    body = ast.parse(source_of(module).read_text()).body
    tried = [inner for node in body if isinstance(node, ast.Try) for inner in node.body]
    return [node for node in body + tried if isinstance(node, ast.ImportFrom)]


def constant_docstring(module: str, name: str) -> str:
    """The text in the statement below the assignment of a constant."""
    body = ast.parse(source_of(module).read_text()).body
    for node, following in pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        assigned = any(isinstance(each, ast.Name) and each.id == name for each in targets)
        if assigned and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return inspect.cleandoc(str(following.value.value))
    return ""


def source_of(module: str) -> Path:
    """The file of a module."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def annotation(value: Any) -> str:
    """A type as written in the source."""
    if isinstance(value, ForwardRef):
        return value.__forward_arg__
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _has_docstring(thing: Any) -> bool:
    """Whether an object has its own docstring: a module, a class or a function."""
    return isinstance(thing, ModuleType) or inspect.isclass(thing) or inspect.isroutine(thing)


def _is_called(thing: Any) -> bool:
    """Whether an object is a function, or a class with a constructor in Python: built-in exceptions have none."""
    if inspect.isclass(thing):
        return inspect.isfunction(thing.__init__) or issubclass(thing, tuple)
    return inspect.isroutine(thing)


def _parameters(found: inspect.Signature) -> Iterator[str]:
    kinds = inspect.Parameter
    before = None
    for each in found.parameters.values():
        if each.kind is kinds.KEYWORD_ONLY and before not in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL):
            yield "*"
        before = each.kind
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
        text = f"{stars}{each.name}"
        if each.annotation is not each.empty:
            text += f": {annotation(each.annotation)}"
        if each.default is not each.empty:
            shown = repr(each.default)
            # A default without a literal form is not shown: its repr may differ from run to run.
            text += " = ..." if shown.startswith("<") else f" = {shown}"
        yield text


def _unannotated(name: str, called: Any, *, returns: bool) -> list[str]:
    found = inspect.signature(called)
    without = [
        f"{name}({each.name})"
        for each in found.parameters.values()
        if each.annotation is each.empty and each.name not in ("self", "cls")
    ]
    if returns and found.return_annotation is found.empty:
        without.append(f"{name}() ->")
    return without


def _page_of(module: str, name: str) -> str:
    """The first page of the module that mentions the name; else the first page of the package that defines it."""
    for page in PUBLIC[module]:
        if mentions((DOCS / page).read_text(), name):
            return page
    defined_in = origin(module, name)[0]
    packages = [each for each in PUBLIC if each.count(".") and defined_in.startswith(f"{each}.")]
    return EXPLAINED.get(name) or PUBLIC[max(packages, key=len, default=module)][0]


def mentions(text: str, name: str) -> bool:
    """Whether the code of a page, in blocks or between backticks, has a name."""
    code = re.findall(r"```.*?```|`[^`\n]+`|^    [^\n]+", text, re.DOTALL | re.MULTILINE)
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", each) for each in code)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
