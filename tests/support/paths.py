"""Paths of this project's files."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SOURCE = ROOT / "src"
DOCS = ROOT / "docs"
FIXTURES = TESTS / "fixtures"
