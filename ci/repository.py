"""Paths of this repository, and functions shared by the scripts that write files in it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "pgoutput_fast"
SERVERS = PACKAGE / "demo" / "servers.py"


def load_module(path: Path) -> ModuleType:
    """Load a module of the package from its path: the package itself may not be compiled, or a table may be damaged."""
    spec = importlib.util.spec_from_file_location(f"_loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module here
    spec.loader.exec_module(module)
    return module


def update_page(page: Path, root: Path, text: str, command: str, *, check: bool) -> int:
    """Write a page if its text is stale; with `check` only report it. Returns the exit status.

    Args:
        page: the file.
        root: the messages name the file relative to this directory.
        text: the text that the file should have.
        command: writes the page; the message names it.
        check: write nothing; the status is 1 if the page is stale.
    """
    if page.exists() and page.read_text() == text:
        return 0
    if check:
        print(f"{page.relative_to(root)} is stale: run `{command}`")
        return 1
    page.write_text(text)
    print(f"{page.relative_to(root)} written")
    return 0
