"""Names of segments in a directory: the first and last ordinal. So names sort in stream order.

A joined segment coexists with its parts until they are removed. Its ordinals cover theirs, so names alone determine
which segments a reader must skip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pgoutput_fast.storage.paths import is_hidden
from pgoutput_fast.storage.stores import Entry, Store, hidden_name

__all__ = [
    "Named",
    "all_named",
    "bytes_after",
    "cover",
    "dated_segments",
    "entries_of_segments",
    "name_of",
    "named_segments",
    "newest_named",
    "ordinals_of",
    "overlap_error",
    "published_name",
    "unpublished_name",
    "unpublished_names",
]

_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")
# The dots of a hidden name, twice while the file is written.
_UNPUBLISHED = re.compile(r"\.{1,2}([0-9]{20}-[0-9]{20}\.parquet)\.unpublished\..+")


@dataclass(frozen=True, order=True)
class Named:
    """A segment as described by its directory entry.

    Attributes:
        first_seq, last_seq: ordinals of its first and last message.
        name: name of the file.
    """

    first_seq: int
    last_seq: int
    name: str

    def overlaps(self, first_seq: int, last_seq: int) -> bool:
        """Whether the segment has a message from `first_seq` to `last_seq`, inclusive."""
        return self.first_seq <= last_seq and self.last_seq >= first_seq


def name_of(first_seq: int, last_seq: int) -> str:
    """The file name of a segment with these ordinals.

    >>> name_of(0, 41)
    '00000000000000000000-00000000000000000041.parquet'
    """
    return f"{first_seq:020}-{last_seq:020}.parquet"


def unpublished_name(first_seq: int, last_seq: int) -> str:
    """A new hidden name for a segment with these ordinals that readers are not to see yet.

    >>> published_name(unpublished_name(0, 41)) == name_of(0, 41)
    True
    """
    return hidden_name(f"{name_of(first_seq, last_seq)}.unpublished")


def published_name(name: str) -> str:
    """The name of the segment with this `unpublished_name`."""
    match = _UNPUBLISHED.fullmatch(name)
    assert match is not None
    return match[1]


def unpublished_names(store: Store) -> list[str]:
    """The files of `unpublished_name` in a directory, also if they are unfinished."""
    return [name for name in store.names() if _UNPUBLISHED.fullmatch(name)]


def ordinals_of(name: str) -> tuple[int, int]:
    """(first, last) ordinal of a segment with this file name.

    Raises:
        ValueError: if it is not the name of a segment.

    >>> ordinals_of("00000000000000000000-00000000000000000041.parquet")
    (0, 41)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} does not have the name of a segment: move the file to another directory")
    return int(match[1]), int(match[2])


def overlap_error(segments: str, seq: int) -> ValueError:
    """The error for two segments with the same message; the text names the segments."""
    return ValueError(
        f"{segments} both have message {seq}: they come from different captures. Move one of them away"
    )


def named_segments(store: Store) -> list[Named]:
    """The segments of a directory in stream order, without covered ones. Reads no footers.

    Raises:
        ValueError: for a Parquet file whose name is not that of a segment.
    """
    return cover(all_named(store))[0]


def all_named(store: Store) -> list[Named]:
    """As `named_segments`, including covered ones.

    Raises:
        ValueError: as `named_segments`.
    """
    return sorted(_named(store, name) for name in _names(store.names()))


def cover(named: Iterable[Named]) -> tuple[list[Named], dict[Named, list[Named]]]:
    """(the segments in stream order, without covered ones; the segments covered by each of these).

    A segment is covered if its ordinals are within those of another one.

    >>> whole, part = Named(0, 9, name_of(0, 9)), Named(5, 9, name_of(5, 9))
    >>> cover([part, whole]) == ([whole], {whole: [part]})
    True
    """
    listed: list[Named] = []
    covered: dict[Named, list[Named]] = {}
    for each in sorted(named, key=lambda each: (each.first_seq, -each.last_seq)):
        if listed and each.last_seq <= listed[-1].last_seq:
            covered.setdefault(listed[-1], []).append(each)
        else:
            listed.append(each)
    return listed, covered


def dated_segments(store: Store) -> dict[Named, float]:
    """The segments of `all_named` with their modification time, in seconds since 1970. Stats each file.

    Raises:
        ValueError: as `named_segments`.
    """
    return {each: entry.modified for each, entry in entries_of_segments(store).items()}


def entries_of_segments(store: Store) -> dict[Named, Entry]:
    """The segments of `all_named`, in stream order, with the entries of their files. Stats each file.

    Raises:
        ValueError: as `named_segments`.
    """
    entries = {entry.name: entry for entry in store.entries()}
    return {each: entries[each.name] for each in sorted(_named(store, name) for name in _names(entries))}


def bytes_after(store: Store, seq: int) -> int:
    """The total size of the segments that end after a message, without covered ones, in bytes.

    Args:
        store: the directory of the segments.
        seq: ordinal of the message; -1 for all segments. In a local directory, this stats only the files after it.

    Raises:
        ValueError: as `named_segments`.
    """
    if not store.local:
        entries = entries_of_segments(store)
        return sum(entries[each].nbytes for each in cover(entries)[0] if each.last_seq > seq)
    found = 0
    for each in named_segments(store):
        if each.last_seq > seq:
            with suppress(FileNotFoundError):  # removed, or joined into another one, in the meantime
                found += os.stat(store.at(each.name)).st_size
    return found


def newest_named(store: Store) -> Named | None:
    """The last one of `named_segments`, None if there is none. Fast even with very many segments.

    Raises:
        ValueError: as `named_segments`.
    """
    newest = ""
    for name in _names(store.names()):
        if _NAME.fullmatch(name) is None:
            _named(store, name)
        newest = max(newest, name)
    return _named(store, newest) if newest else None


def _names(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name.endswith(".parquet") and not is_hidden(name))


def _named(store: Store, name: str) -> Named:
    try:
        return Named(*ordinals_of(name), name)
    except ValueError as problem:
        raise ValueError(f"{store}: {problem}") from None
