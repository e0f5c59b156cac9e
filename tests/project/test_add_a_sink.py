"""docs/add-a-sink.md names files and functions that exist, and the two methods that the capture calls."""

from __future__ import annotations

import ast
import inspect

from pgoutput_fast.typed_files.files import TypedFiles
from support.named_places import PACKAGE, ROOT, missing, named_places

PAGE = ROOT / "docs" / "add-a-sink.md"


def test_functions_that_the_page_names_exist() -> None:
    assert len(list(named_places(PAGE))) > 25
    found = missing(PAGE)
    assert not found, "\n" + "\n".join(found)


def test_the_page_names_all_that_a_capture_calls() -> None:
    """`SegmentDirectory` keeps the typed files as `self._typed`."""
    tree = ast.parse((PACKAGE / "capture" / "segment_directory.py").read_text())
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "_typed"
    }
    public = {
        name for name, _ in inspect.getmembers(TypedFiles, inspect.isfunction) if not name.startswith("_")
    }
    assert called == public
    named = {name for each in named_places(PAGE) for name in each.names}
    missing_names = sorted({f"TypedFiles.{name}" for name in called} - named)
    assert not missing_names, f"docs/add-a-sink.md: a capture calls {missing_names}, too: add a step"


def test_the_readme_has_the_page() -> None:
    assert "(docs/add-a-sink.md)" in (ROOT / "README.md").read_text()
