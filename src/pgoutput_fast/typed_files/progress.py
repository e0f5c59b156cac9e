"""The places of typed files in a directory of segments, and the last segment that has typed files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.documents import parsed_json
from pgoutput_fast.storage.stores import Entry, Store
from pgoutput_fast.storage.table_directories import table_directory

__all__ = [
    "PROGRESS",
    "TYPED",
    "Progress",
    "read_progress",
    "rejects_file",
    "typed_file",
    "typed_files",
    "write_progress",
]

TYPED = "typed"
PROGRESS = f"{TYPED}/_progress.json"
_REJECTS = f"{TYPED}/_rejects"


@dataclass(frozen=True)
class Progress:
    """How far the typed files go.

    Attributes:
        last_seq: ordinal of the last message of the last segment with typed files.
        next_seq: ordinal of the next message after it.
    """

    last_seq: int
    next_seq: int


def read_progress(store: Store) -> Progress | None:
    """Returns the progress, None if no typed file has been made yet.

    Raises:
        ValueError: if the progress file is damaged.
    """
    try:
        values = parsed_json(store.read(PROGRESS))
        return Progress(int(values["last_seq"]), int(values["next_seq"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{store}/{PROGRESS} is damaged: remove {TYPED}/. The next capture with typed= makes its files again from "
            "the remaining segments"
        ) from None


def write_progress(store: Store, progress: Progress) -> None:
    """Writes the progress. It is durable when this returns."""
    store.put(PROGRESS, json.dumps({"last_seq": progress.last_seq, "next_seq": progress.next_seq}).encode())


def typed_file(relation: Relation, segment: str) -> str:
    """Returns the name of the file with a relation version's changes that committed in a segment.

    >>> typed_file(Relation(16401, -2, "public", "so called.", "d", ()), "7-9.parquet")
    'typed/public.so%20called%2E/fffffffffffffffe/7-9.parquet'
    """
    table = table_directory(relation.namespace, relation.name)
    return f"{TYPED}/{table}/{relation.version & (1 << 64) - 1:016x}/{segment}"


def rejects_file(segment: str) -> str:
    """Returns the name of the file with the segment's rejects."""
    return f"{_REJECTS}/{segment}"


def typed_files(store: Store) -> list[Entry]:
    """Returns all typed files, including rejects."""
    return [
        each
        for each in store.entries(TYPED, recursive=True)
        if each.name.endswith(".parquet") and not each.name.rpartition("/")[2].startswith(".")
    ]
