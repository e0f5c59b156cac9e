"""The formats of tables in a lake, and the formats of tables in a directory."""

from __future__ import annotations

import os
import re

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.manifest import MANIFEST

__all__ = ["FORMATS", "check_path", "formats_of"]

# Format -> the directory of a file of every such table, and the end of the file's name.
_SIGNS = {
    "parquet": ("", f"/{MANIFEST}"),
    "delta": ("/_delta_log", ".json"),
    "iceberg": ("/metadata", ".metadata.json"),
}
FORMATS = tuple(_SIGNS)
# Characters in the path of a target that readers of a format misread, because they make a URI of it.
_UNFIT = {
    "delta": re.compile(r"%[0-9a-fA-F]{2}|[\\\x00-\x1f]"),
    "iceberg": re.compile(r"[?#\x00-\x1f]"),
    "duckdb": re.compile(r"[?]"),
}


def check_path(store: Store, format: str) -> None:
    """Checks that readers of a format can find the path of a local target.

    Raises:
        ValueError: if they cannot.
    """
    wrong = _UNFIT[format].search(os.fspath(store.at(""))) if store.local and format in _UNFIT else None
    if wrong:
        raise ValueError(
            f"{store} cannot be the target, because readers of {format} tables cannot find a path with "
            f"{wrong.group()!r}: use another target"
        )


def formats_of(store: Store, directory: str) -> list[str]:
    """The formats of the tables in a directory."""
    return [
        format
        for format, (below, name) in _SIGNS.items()
        if any(each.endswith(name) for each in store.names(f"{directory}{below}"))
    ]
