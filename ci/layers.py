"""The layers of the package, and their imports: for the test of the layers and for their drawing.

Every import counts: those inside of functions, those only for type checkers, and those of stubs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

PACKAGE = "pgoutput_fast"

# From top to bottom. A module may import its own group and those below its rank; groups of one rank do not import each
# other. A name takes precedence over a pattern, and the last matching pattern over the others. "" is the package.
LAYERS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"cli": ("cli", "cli.*", "__main__")},
    {"demo": ("demo", "demo.*")},
    {"spark": ("spark", "spark.*")},
    # Code that runs on executors: without PySpark.
    {"spark tasks": ("spark.tasks", "spark.tasks.*")},
    {"mirror": ("mirror", "mirror.*")},
    {"the public face": ("",)},
    {"live": ("live", "live.*")},
    {"capture": ("capture", "capture.*")},
    {
        "snapshot": ("snapshot", "snapshot.*"),
        "merge": ("merge", "merge.*"),
    },
    {
        "tables": ("tables", "tables.*"),
        "segments": ("segments", "segments.*"),
        "postgres": ("postgres", "postgres.*"),
        "parallel_tag": ("parallel_tag", "parallel_tag.*"),
    },
    {
        "decoding": ("decoding", "decoding.*", "transactions", "transactions.*"),
        "messages": ("messages", "messages.*"),
    },
    {"_core": ("_core", "_core.*")},
    {"schema": ("schema", "schema.*"), "encode": ("encode", "encode.*")},
    {"catalog": ("catalog", "catalog.*"), "storage": ("storage", "storage.*")},
    {"base": ("base", "base.*", "protocol", "protocol.*")},
)

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>[\w.]+)[ \t]+c?import[ \t]*(?P<names>\([^)]*\)|[^\n]+)"
    r"|c?import[ \t]+(?P<modules>[^\n]+))",
    re.MULTILINE,
)


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yields (number of dots, module, names) of a file's imports; no names for `import module`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from ((0, each.name, []) for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.level, node.module or "", [each.name for each in node.names]
        return
    for found in _IMPORT.finditer(re.sub(r"#[^\n]*", "", text)):
        if found["base"]:
            module = found["base"].lstrip(".")
            names = [each.split()[0] for each in found["names"].strip("() \n").split(",") if each.strip()]
            yield len(found["base"]) - len(module), module, names
        else:
            yield from ((0, each.split()[0], []) for each in found["modules"].split(","))


def read_imports(root: Path) -> dict[str, set[str]]:
    """The modules under `root` and their imports, by full names."""
    files = sorted(each for each in root.rglob("*") if each.suffix in (".py", ".pyi", ".pyx", ".pxd"))
    modules = {_module(path, root) for path in files}
    imports: dict[str, set[str]] = {module: set() for module in modules}
    for path in files:
        importer = _module(path, root)
        for dots, base, names in _statements(path):
            if dots:
                parts = importer.split(".")
                parts = parts[: len(parts) - dots + (path.stem == "__init__")]
                base = ".".join([*parts, *([base] if base else [])])
            found = {f"{base}.{name}" for name in names} & modules
            if len(found) < len(names) or not names:
                found.add(base)
            imports[importer] |= found
        imports[importer].discard(importer)
    return imports


def own_imports(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The imports within the package, without its name; "" is the package itself."""
    return {
        module.removeprefix(PACKAGE).lstrip("."): {
            each.removeprefix(PACKAGE).lstrip(".") for each in found if each.split(".")[0] == PACKAGE
        }
        for module, found in imports.items()
        if module.split(".")[0] == PACKAGE
    }


def place(module: str) -> tuple[int, str] | None:
    """Returns (rank from the top, group) of a module, None if it has none."""
    found = None
    for rank, groups in enumerate(LAYERS):
        for group, patterns in groups.items():
            if module in patterns:
                return rank, group
            if any("*" in pattern and fnmatchcase(module, pattern) for pattern in patterns):
                found = rank, group
    return found
