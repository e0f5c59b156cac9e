"""The formats of tables in a lake, and which directories of a target have one."""

from __future__ import annotations

from pgoutput_fast.lake.manifest import MANIFEST
from pgoutput_fast.storage.stores import Store

__all__ = ["FORMATS", "formats_of", "tables_in"]

# Format -> where a table of it has a file, and how the file's name ends.
_SIGNS = {
    "parquet": ("", f"/{MANIFEST}"),
    "delta": ("/_delta_log", ".json"),
    "iceberg": ("/metadata", ".metadata.json"),
}
FORMATS = tuple(_SIGNS)


def formats_of(store: Store, directory: str) -> list[str]:
    """The formats of which a directory has a table."""
    return [
        format
        for format, (below, name) in _SIGNS.items()
        if any(each.endswith(name) for each in store.names(f"{directory}{below}"))
    ]


def tables_in(store: Store) -> dict[str, str]:
    """{directory: format} of the tables of a target, without those of rejects. This lists the whole target."""
    found = {}
    for path in (entry.name for entry in store.entries(recursive=True)):
        directory, _, rest = path.partition("/")
        for format, (below, name) in _SIGNS.items():
            is_below = f"/{rest}".startswith(f"{below}/") and rest.count("/") == below.count("/")
            if is_below and path.endswith(name) and not directory.startswith("_"):
                found[directory] = format
    return found
