"""The catalog of a segment: in its footer while it is small, otherwise also in files beside the segments.

A stream may have 100,000 relation versions, and a segment only a few rows. So a segment stores only new versions:

- A footer holds the recent additions of its directory, at most INLINE_BYTES. While these are complete, the segment
  needs no other file.
- The rest goes into parts. A part is a file in `_catalog/`. It is written once, its name contains its SHA-256, and it
  is durable before its segment. The footer lists its parts in order. A later part overrides an earlier one, and the
  footer overrides all parts.
- FANOUT parts of similar size are merged into one. The merge drops overridden items. A part of FINAL_BYTES is not
  merged again. So items are written only a few times, and the number of parts stays small.
- A merge also drops unreferenced relation versions: no later row can have them.

The segments that refer to a part are consecutive. The first is the one for which the part was written. The last is the
one before a segment that has the content in another part, or has dropped it. So a part written before the oldest
segment, and not listed by it, is unused.

The alternative is a chain of footers, each with its own additions and without files. Then a reader would need every
footer since the last full one, and retention could remove none of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import NO_TYPES, UserType, UserTypes
from pgoutput_fast.decoding.state import News, StreamState
from pgoutput_fast.storage.stores import Store

__all__ = [
    "CATALOG_DIRECTORY",
    "UNREAD",
    "CatalogLog",
    "FooterContent",
    "Part",
    "SegmentCatalog",
    "content_of_joined",
    "sweep_joined",
    "sweep_orphans",
    "sweep_unused",
]

CATALOG_DIRECTORY = "_catalog"
# Maximum bytes of the catalog in a footer: enough for several hundred narrow tables.
INLINE_BYTES = 1 << 18
FANOUT = 8
FINAL_BYTES = 1 << 25
# In an object store, another process may still be writing the segment that needs a part file. So only files older than
# this are removed.
_ORPHAN_SECONDS = 86_400
_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{64})\.jsonl\.zst")
_MOST_BYTES = 1 << 31

# The catalog, one item a line. An item is one of ["version", id of the version, the relation], ["relation", oid,
# [version, seq]], ["type", oid, [namespace, name, seq]] and ["user_type", oid, the type as described by the server].
Items = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Part:
    """A part file.

    Attributes:
        name: its name in `_catalog/`: the ordinal of the last message of the segment for which it was written, and the
            SHA-256 of the file.
        nbytes: size of its content in bytes, uncompressed.
    """

    name: str
    nbytes: int

    @property
    def last_seq(self) -> int:
        """Ordinal of the last message of the segment for which it was written."""
        return int(self.name[:20])

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, as hexadecimal digits."""
        return self.name[21:85]

    @property
    def file(self) -> str:
        """The name of the file in the store."""
        return f"{CATALOG_DIRECTORY}/{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON values."""
        return {"name": self.name, "bytes": self.nbytes}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Part:
        """The inverse of `to_dict`.

        Raises:
            ValueError, KeyError, TypeError: if the values do not describe a part.
        """
        name, nbytes = values["name"], values["bytes"]
        if not _NAME.fullmatch(name) or not isinstance(nbytes, int) or not 0 < nbytes <= _MOST_BYTES:
            raise ValueError("a part of its catalog has a wrong name or size")
        return cls(name, nbytes)


class _PartContent:
    """The content of a part."""

    def __init__(self, text: str) -> None:
        self.versions: dict[int, str] = {}
        self.news = News({}, {})
        self.user_types: dict[str, Any] = {}
        for (kind, key), value in _items(text):
            if kind == "version":
                self.versions[int(key)] = value
            elif kind == "relation":
                self.news.relations[key] = parsed_json(value)
            elif kind == "type":
                self.news.types[key] = parsed_json(value)
            elif kind == "user_type":
                self.user_types[key] = parsed_json(value)
            else:
                raise ValueError(f"it has an item of an unknown kind: {kind!r}")

    @cached_property
    def relations(self) -> dict[int, Relation]:
        """Relation versions by id, parsed on first use."""
        return {version: Relation.from_dict(parsed_json(text)) for version, text in self.versions.items()}


# Contents of the parts in use. Segments share most of their parts.
_read: WeakValueDictionary[str, _PartContent] = WeakValueDictionary()


class _CatalogText:
    """The catalog of a footer. Segments with the same text share it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, parsed on first use."""
        return Catalog.from_json(self.text)


# The catalogs of the segments in use. Most segments have the same catalog as the previous one.
_texts: WeakValueDictionary[str, _CatalogText] = WeakValueDictionary()


class SegmentCatalog:
    """A segment's relations and its state of the stream.

    Args:
        catalog, state: JSON texts of the footer.
        parts: the part files that the footer lists, in order.
        store: returns the store with the part files.
    """

    def __init__(self, catalog: str, state: str, parts: Sequence[Part], store: Callable[[], Store]) -> None:
        shared = _texts.get(catalog)
        if shared is None:
            shared = _texts[catalog] = _CatalogText(catalog)
        self._shared, self.text, self.parts = shared, state, tuple(parts)
        self._store = store

    @property
    def catalog(self) -> str:
        """JSON text of the footer's catalog."""
        return self._shared.text

    def is_same_catalog(self, other: SegmentCatalog) -> bool:
        """Whether both have the same relation versions and types. Parses nothing."""
        return self._shared is other._shared and self.parts == other.parts

    @cached_property
    def _own(self) -> StreamState:
        own = StreamState.from_dict(parsed_json(self.text), self._shared.catalog)
        if self.parts and own.values is None:
            raise ValueError("it has part files, but its state is empty")
        return own

    def check(self) -> None:
        """Checks that catalog and state of the footer can be parsed.

        Raises:
            ValueError: if they cannot.
        """
        assert self._own is not None

    def check_parts(self) -> None:
        """Checks that the part files exist.

        Raises:
            ValueError: if one is missing.
        """
        if self.parts and (missing := _missing(self._store(), self.parts)):
            raise _gone(self._store(), missing[0])

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that are open after the segment, as in the state. Reads no parts."""
        return self._own.open_txns

    @cached_property
    def state(self) -> StreamState:
        """The state after the segment, with its catalog.

        Raises:
            ValueError: if a part is damaged or missing.
        """
        if not self.parts:
            return self._own
        own = self._own.values or {}
        relations: dict[str, Any] = {}
        types: dict[str, Any] = {}
        user_types: dict[str, Any] = {}
        for said in self._said:
            relations |= said.news.relations
            types |= said.news.types
            user_types |= said.user_types
        values = own | {
            "relations": _by_oid(relations | own["relations"]),
            "types": _by_oid(types | own["types"]),
        }
        of_server = UserTypes(map(UserType.from_dict, user_types.values())).merged(self._own.catalog.types)
        return StreamState(values, Catalog.lazily(self._relations, of_server))

    @cached_property
    def _said(self) -> list[_PartContent]:
        return [_read_part(self._store(), part) for part in self.parts]

    def _relations(self) -> dict[int, Relation]:
        found: dict[int, Relation] = {}
        for said in self._said:
            found |= said.relations
        return found | {relation.version: relation for relation in self._own.catalog.relations}


def _nowhere() -> Store:
    raise ValueError("this footer was not read as a whole: open the segment")


# Stands for a segment whose footer was not read.
UNREAD = SegmentCatalog("", "", (), _nowhere)


@dataclass(frozen=True)
class FooterContent:
    """The catalog and state for the footer of a new segment, and the directory's catalog after that segment.

    Attributes:
        parts: part files that the segment needs; they are durable.
        own: the items in the footer.
        catalog, state: JSON texts for the footer.
        logged: ids of the relation versions to add to those of the log.
        dropped: ids of the relation versions to remove from those of the log.
        restarts: whether the log restarts, without its earlier versions.
        state_after: the state after the segment.
    """

    parts: tuple[Part, ...]
    own: Items
    catalog: str
    state: str
    logged: frozenset[int]
    dropped: frozenset[int]
    restarts: bool
    state_after: StreamState


class CatalogLog:
    """The catalog of a directory of segments. The writer of these segments keeps it from one segment to the next.

    Args:
        store: the store with the segments.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.restart()

    def restart(self) -> None:
        """Forgets everything. The next segment stores all that it needs."""
        self._parts: tuple[Part, ...] = ()
        self._own: Items = {}
        self._logged: set[int] = set()
        self._last: FooterContent | None = None

    def follows(self, newest: SegmentCatalog) -> bool:
        """Whether `newest` is the last segment written with this log."""
        last = self._last
        return last is not None and (last.catalog, last.state, last.parts) == (
            newest.catalog,
            newest.text,
            newest.parts,
        )

    @property
    def outgrown(self) -> bool:
        """Whether there are part files: the catalog does not fit into the footer."""
        return bool(self._parts)

    def step(self, state: StreamState, used: Iterable[int], last_seq: int) -> FooterContent:
        """Returns the footer content of the next segment. Its parts are durable. `advance` applies it to the log.

        Args:
            state: the state after the segment.
            used: ids of the relation versions of its rows.
            last_seq: ordinal of its last message.

        Raises:
            OSError: if a part cannot be written or read back.
            ValueError: if a part to be merged is damaged.
        """
        before = None if self._last is None or _missing(self._store, self._parts) else self._last.state_after
        live = None if before is None else state.news_since(before)
        news = live if live is not None else _difference(state, before)
        if news is None:  # the state has dropped something since
            before, news = None, _difference(state, None)
            assert news is not None
        parts, own = (self._parts, dict(self._own)) if before is not None else ((), {})
        logged = self._logged if before is not None else set()
        needed = {int(version) for version, _ in news.relations.values() if version is not None}
        needed |= {*used, *state.scoped_versions}
        if live is None:
            new = [each for each in state.catalog.relations if each.version not in logged]
        else:
            new = state.in_order(needed - logged)
        for relation in new:
            own["version", str(relation.version)] = _json(relation.to_dict())
        _put(own, "relation", news.relations)
        _put(own, "type", news.types)
        types = state.catalog.types
        if types and (before is None or types != before.catalog.types):
            _put(own, "user_type", {str(oid): types[oid].to_dict() for oid in sorted(types)})
        dropped: frozenset[int] = frozenset()
        if _size(own) > INLINE_BYTES:
            parts, dropped = self._outgrow(parts, own, last_seq, needed)
            own = {}
        catalog, document = _for_footer(own, state)
        fresh = frozenset(relation.version for relation in new) - dropped
        return FooterContent(parts, own, catalog, document, fresh, dropped, before is None, state)

    def advance(self, content: FooterContent) -> None:
        """Applies the content of a footer. Call it when the segment is durable."""
        self._parts, self._own, self._last = content.parts, content.own, content
        if content.restarts:
            self._logged.clear()
        self._logged -= content.dropped
        self._logged |= content.logged

    def _outgrow(
        self, parts: tuple[Part, ...], own: Items, last_seq: int, needed: set[int]
    ) -> tuple[tuple[Part, ...], frozenset[int]]:
        """Moves the footer's items into a part, and merges parts. Returns (all parts, ids of the dropped versions)."""
        dropped: set[int] = set()
        size = _size(own)
        while _is_worth_it(parts, size):
            parts, last = parts[: 1 - FANOUT], parts[1 - FANOUT :]
            together: Items = {}
            for part in last:
                _overlay(together, dict(_items(_text(self._store, part))))
            _overlay(together, own)
            own, size = together, _size(together)
        current = {parsed_json(said)[0] for (kind, _), said in own.items() if kind == "relation"}
        kept: Items = {}
        for (kind, key), said in own.items():
            if kind == "version" and key not in current and int(key) not in needed:
                dropped.add(int(key))
            else:
                kept[kind, key] = said
        return (*parts, _write_part(self._store, kept, last_seq)), frozenset(dropped)


def content_of_joined(
    store: Store, earlier: Iterable[SegmentCatalog], last: SegmentCatalog, used: set[int], last_seq: int
) -> FooterContent:
    """Returns the footer content of a joined segment. Its parts are durable on return.

    It needs what the last of the segments needs, because later segments continue from that, and the versions of all
    rows. If the last one has parts, the joined one lists them: so the segments that refer to a part remain consecutive.

    Args:
        store: the store with the segments.
        earlier: the catalogs of the segments before the last one, in stream order. One is in memory at a time.
        last: the catalog of the last one.
        used: ids of the relation versions of the rows.
        last_seq: ordinal of the last message.

    Raises:
        OSError: if a part cannot be written or read back.
        ValueError: if a part is damaged or missing.
    """
    state = last.state
    missing: dict[int, Relation] = {}
    types, before = NO_TYPES, None
    wanted = used - {relation.version for relation in state.catalog.relations}
    for each in earlier:
        # Most segments have the same catalog as the previous one.
        if before != (before := (hashlib.sha256(each.catalog.encode()).digest(), each.parts)):
            types = types.merged(each.state.catalog.types)
            missing |= {found.version: found for found in each.state.in_order(wanted)}
    types = types.merged(state.catalog.types)
    if not last.parts:
        catalog = Catalog([*missing.values(), *state.catalog.relations], types)
        return CatalogLog(store).step(StreamState(state.values, catalog), used, last_seq)
    # Earlier items are overridden by those of the last segment.
    added: Items = {}
    for relation in missing.values():
        added["version", str(relation.version)] = _json(relation.to_dict())
    if types != state.catalog.types:
        _put(added, "user_type", {str(oid): types[oid].to_dict() for oid in sorted(types)})
    front = (_write_part(store, added, last_seq),) if added else ()
    nothing: frozenset[int] = frozenset()
    return FooterContent((*front, *last.parts), {}, last.catalog, last.text, nothing, nothing, False, state)


def sweep_joined(store: Store, joined: SegmentCatalog, first_seq: int, last_seq: int) -> None:
    """Removes part files needed only by segments that were joined into one, and removed.

    Args:
        store: the store with the segments.
        joined: the catalog of the joined segment. It lists each part that its last segment listed, so a later segment
            needs no other part that was written for one of them.
        first_seq, last_seq: ordinals of the first and last message of the joined segment.
    """
    needed = {part.name for part in joined.parts}
    for name, seq, _ in _listed(store):
        if first_seq <= seq <= last_seq and name not in needed:
            store.remove(f"{CATALOG_DIRECTORY}/{name}")


def sweep_unused(store: Store, oldest: SegmentCatalog, oldest_seq: int) -> None:
    """Removes part files that no segment needs any more.

    Args:
        store: the store with the segments.
        oldest: the catalog of the oldest remaining segment.
        oldest_seq: ordinal of the last message of that segment.
    """
    needed = {part.name for part in oldest.parts}
    for name, last_seq, _ in _listed(store):
        if last_seq <= oldest_seq and name not in needed:
            store.remove(f"{CATALOG_DIRECTORY}/{name}")


def sweep_orphans(store: Store, newest_seq: int) -> None:
    """Removes part files whose segment was never written. No other process may write into the store meanwhile.

    Args:
        store: the store with the segments.
        newest_seq: ordinal of the last message of the newest segment, -1 if there is none.
    """
    for name, last_seq, modified in _listed(store):
        if last_seq > newest_seq and (store.local or modified < time.time() - _ORPHAN_SECONDS):
            with suppress(OSError):
                store.remove(f"{CATALOG_DIRECTORY}/{name}")


# ---- parts -------------------------------------------------------------------------------------------------------


def _listed(store: Store) -> Iterator[tuple[str, int, float]]:
    """(name, ordinal of the last message of its segment, time of writing in seconds since 1970) of each part file."""
    for entry in store.entries(CATALOG_DIRECTORY):
        name = entry.name.rpartition("/")[2]
        if match := _NAME.fullmatch(name):
            yield name, int(match[1]), entry.modified


def _missing(store: Store, parts: Sequence[Part]) -> list[Part]:
    there = set(store.names(CATALOG_DIRECTORY)) if parts else set()
    return [part for part in parts if part.file not in there]


def _gone(store: Store, part: Part) -> ValueError:
    return ValueError(
        f"{_place_of(store, part)} is missing. Restore it. If you copy segments, copy {CATALOG_DIRECTORY}/ with them: "
        "it has what does not fit into their footers"
    )


def _place_of(store: Store, part: Part) -> str:
    return f"{store}: a part of the catalog, {part.file},"


def _text(store: Store, part: Part) -> str:
    """The content of a part.

    Raises:
        ValueError: if the part is damaged or missing.
    """
    try:
        packed = store.read(part.file)
    except FileNotFoundError:
        raise _gone(store, part) from None
    if hashlib.sha256(packed).hexdigest() != part.digest:
        raise ValueError(
            f"{_place_of(store, part)} is damaged: its SHA-256 is not the one in its name. Restore it"
        )
    try:
        text: bytes = pa.decompress(packed, part.nbytes, codec="zstd", asbytes=True)
        return text.decode()
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ValueError(f"{_place_of(store, part)} is damaged: {problem}. Restore it") from None


def _read_part(store: Store, part: Part) -> _PartContent:
    place = str(store.at(part.file))
    said = _read.get(place)
    if said is None:
        text = _text(store, part)
        try:
            said = _PartContent(text)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{_place_of(store, part)} cannot be read: {problem}. Restore it") from None
        _read[place] = said
    return said


def _write_part(store: Store, items: Items, last_seq: int) -> Part:
    """Writes a part file. It is durable and has been read back on return."""
    lines = [f"{_json(list(key))[:-1]}, {value}]\n" for key, value in items.items()]
    text = "".join(lines).encode()
    packed: bytes = pa.compress(text, codec="zstd", asbytes=True)
    part = Part(f"{last_seq:020}-{hashlib.sha256(packed).hexdigest()}.jsonl.zst", len(text))
    store.put(part.file, packed)
    try:
        _text(store, part)
    except ValueError as problem:
        raise OSError(f"{problem}. This process has just written it, so check the disk") from None
    return part


def _items(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """((kind, key), value as JSON) of each line. Kinds and keys have no characters that JSON escapes."""
    for line in text.split("\n")[:-1]:
        kind, key, value = line[1:-1].split(", ", 2)
        yield (kind[1:-1], key[1:-1]), value


def _is_worth_it(parts: Sequence[Part], nbytes: int) -> bool:
    """Whether to merge the last FANOUT - 1 parts with a new part of this size: none of them is of a higher level."""
    last = parts[1 - FANOUT :]
    return (
        len(last) == FANOUT - 1 and all(_level(each.nbytes) <= _level(nbytes) for each in last) and nbytes < FINAL_BYTES
    )  # fmt: skip


def _level(nbytes: int) -> int:
    level = 0
    while nbytes >= INLINE_BYTES * FANOUT:
        nbytes //= FANOUT
        level += 1
    return level


# ---- items -------------------------------------------------------------------------------------------------------


def _difference(state: StreamState, before: StreamState | None) -> News | None:
    """The additions in `state` since `before`; None if `state` has dropped something. Compares everything."""
    found = []
    for name in ("relations", "types"):
        now = (state.values or {}).get(name, {})
        then = {} if before is None else (before.values or {}).get(name, {})
        if not then.keys() <= now.keys():
            return None
        found.append({oid: said for oid, said in now.items() if then.get(oid) != said})
    return News(*found)


def _put(items: Items, kind: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        items[kind, key] = _json(value)


def _overlay(items: Items, later: Items) -> None:
    """Adds later items. A repeated item moves to the end."""
    for key, value in later.items():
        items.pop(key, None)
        items[key] = value


def _size(items: Items) -> int:
    return sum(len(value) + len(kind) + len(key) + 12 for (kind, key), value in items.items())


def _for_footer(own: Items, state: StreamState) -> tuple[str, str]:
    """(catalog, state without catalog) as JSON, with only the items of `own`."""
    of_kind: dict[str, list[tuple[str, str]]] = {
        kind: [] for kind in ("version", "relation", "type", "user_type")
    }
    for (kind, key), value in own.items():
        of_kind[kind].append((key, value))
    relations = ", ".join(value for _, value in of_kind["version"])
    types = ", ".join(value for _, value in of_kind["user_type"])
    catalog = f'{{"format": 1, "relations": [{relations}], "types": [{types}]}}'
    document = {"format": 1, "state": state.position, "held": None}
    if document["state"] is None:
        return catalog, _json(document)
    said = {
        name: {key: parsed_json(value) for key, value in sorted(of_kind[kind], key=lambda each: int(each[0]))}
        for name, kind in (("relations", "relation"), ("types", "type"))
    }
    return catalog, _json({**document, "state": {**(state.position or {}), **said}})


def _by_oid(values: dict[str, Any]) -> dict[str, Any]:
    return {oid: values[oid] for oid in sorted(values, key=int)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
