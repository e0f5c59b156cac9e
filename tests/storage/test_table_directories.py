"""What tables' directories are called."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from urllib.parse import unquote

from pgoutput_fast.storage.table_directories import table_directory


def test_a_name_that_fits_can_be_read() -> None:
    for namespace, name in itertools.product(
        ["public", "_a", "a.b", "~", "ü", "%2E"], ["t", "_t", ".", "a b", "/", "*"]
    ):
        directory = table_directory(namespace, name)
        left, right = directory.split(".")
        assert (unquote(left), unquote(right)) == (namespace, name)
        assert directory[0] not in "._"
        assert "~" not in directory


def test_no_two_tables_share_one(tmp_path: Path) -> None:
    """Of the longest names that there are, too; and among them those that look as if they were shortened."""
    parts = [
        "public",
        "é" * 31,
        "é" * 30 + "è",
        "é" * 30,
        "注" * 21,
        "注" * 20 + "_",
        "a" * 63,
        "%C3%A9" * 10,
        "~" * 63,
    ]
    tables = list(itertools.product(parts, parts))
    shortened = [table_directory(*table) for table in tables]
    parts_of_them = [each.split(".")[-1][-63:] for each in shortened]
    tables += list(itertools.product(["public"], dict.fromkeys(parts_of_them)))
    directories = {table_directory(*table) for table in tables}
    assert len(directories) == len(set(tables))
    for each in directories:
        assert len(each.encode()) <= 200
        # With what hides it while it is not finished.
        os.mkdir(tmp_path / f".{each}.00000003-00000002-1.partial")
        os.mkdir(tmp_path / each)


def test_where_a_name_is_shortened() -> None:
    """Only where it must be, always in the same way: other programs may find it so."""
    assert table_directory("a" * 63, "b" * 63) == f"{'a' * 63}.{'b' * 63}"
    assert table_directory("a" * 13, "é" * 31) == f"{'a' * 13}.{'%C3%A9' * 31}", "200 characters"
    digest = "6a7de9fcf3ebf9034093a1891c9eaa0c4531255c3455488effdf28a0bb0c6020"  # of SHA-256
    assert table_directory("a" * 14, "é" * 31) == (f"{'a' * 14}.{'%C3%A9' * 20}~{digest}")
