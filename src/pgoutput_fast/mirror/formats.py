"""The kinds of current tables, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pgoutput_fast.mirror.current.table import CurrentTable

__all__ = ["FORMATS", "open_current"]

FORMATS = ("delta",)


def open_current(
    format: str, target: str | os.PathLike[str], directory: str, storage_options: Mapping[str, str]
) -> CurrentTable:
    """Opens a current table, which need not exist yet.

    Args:
        format: one of `FORMATS`.
        target: the directory or URI with all current tables.
        directory: the table's name in it.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.

    Raises:
        ImportError: if a package is not installed that the format needs.
    """
    from pgoutput_fast.mirror.current.delta import DeltaCurrent

    return DeltaCurrent(target, directory, storage_options)
