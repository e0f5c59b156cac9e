"""The formats of tables in a lake, and which directories of a target have one."""

from __future__ import annotations

import os
import re

from pgoutput_fast.lake.manifest import MANIFEST
from pgoutput_fast.storage.stores import Store

__all__ = ["FORMATS", "check_path", "formats_of"]

# Format -> where a table of it has a file, and how the file's name ends.
_SIGNS = {
    "parquet": ("", f"/{MANIFEST}"),
    "delta": ("/_delta_log", ".json"),
    "iceberg": ("/metadata", ".metadata.json"),
}
FORMATS = tuple(_SIGNS)
# What readers of a format take for something else in the path of a target, because they make a URI of it.
_UNFIT = {
    "delta": re.compile(r"%[0-9a-fA-F]{2}|[\\\x00-\x1f]"),
    "iceberg": re.compile(r"[?#\x00-\x1f]"),
    "duckdb": re.compile(r"[?]"),
}


def check_path(store: Store, format: str) -> None:
    """Checks that a local target has a path that readers of a format find.

    Raises:
        ValueError: if it has not.
    """
    wrong = _UNFIT[format].search(os.fspath(store.at(""))) if store.local and format in _UNFIT else None
    if wrong:
        raise ValueError(
            f"{store} cannot be the target, because readers of {format} tables cannot find a path with "
            f"{wrong.group()!r}: use another target"
        )


def formats_of(store: Store, directory: str) -> list[str]:
    """The formats of which a directory has a table."""
    return [
        format
        for format, (below, name) in _SIGNS.items()
        if any(each.endswith(name) for each in store.names(f"{directory}{below}"))
    ]
