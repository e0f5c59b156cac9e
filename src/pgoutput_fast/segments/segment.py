"""Segments: Parquet files of tagged payloads. Their layout lets a reader of one table skip the other tables.

The rows of a segment are in this order:

1. control rows (all kinds except inserts, updates and deletes) without a relation;
2. control rows with a relation;
3. changes, sorted by (relation, version), and in stream order within one version.

A relation gets its own row groups once its rows are large enough. The footer holds the state of the stream after the
segment, so a reader or writer can continue from there. This module defines the content of footers. `segments.footer`
has its texts, `segments.read` and `segments.write` read and write whole segments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.segments.catalog import SegmentCatalog
from pgoutput_fast.segments.joined import Joined
from pgoutput_fast.storage.paths import redacted_uri

__all__ = ["RowGroup", "Segment", "Source", "check_source"]


@dataclass(frozen=True)
class Source:
    """The origin of a stream. All segments of a directory have the same source.

    Attributes:
        system_identifier: the server's identifier, as returned by `IDENTIFY_SYSTEM` and `pg_control_system()`.
        database: name of the database.
        slot: name of the replication slot.
        publications: names of the publications.
        options: options of the output plugin, such as `proto_version`.

    >>> Source.from_dict(Source("7", "shop", "s", ("p",), {"binary": "true"}).to_dict()).options
    {'binary': 'true'}
    """

    system_identifier: str
    database: str
    slot: str
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        expect_list("publications", self.publications)

    def to_dict(self) -> dict[str, Any]:
        """The source as JSON values."""
        return {
            "system_identifier": self.system_identifier,
            "database": self.database,
            "slot": self.slot,
            "publications": list(self.publications),
            "options": dict(self.options),
        }

    def differences(self, other: Source) -> list[str]:
        """Describes the differences to another source, one text each.

        >>> Source("7", "shop", "s", ("p",)).differences(Source("7", "shop", "t", ("p",), {"binary": "true"}))
        ['slot s, not t', 'option binary unset, not true']
        """
        pairs = [
            ("server", self.system_identifier, other.system_identifier),
            ("database", self.database, other.database),
            ("slot", self.slot, other.slot),
            ("publications", ", ".join(self.publications), ", ".join(other.publications)),
        ]
        # They are equivalent to the publications.
        same = set() if self.publications == other.publications else {"publication_names"}
        for name in sorted({*self.options, *other.options} - same):
            pairs.append(
                (f"option {name}", self.options.get(name, "unset"), other.options.get(name, "unset"))
            )
        return [f"{what} {mine}, not {theirs}" for what, mine, theirs in pairs if mine != theirs]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Source:
        """The inverse of `to_dict`."""
        return cls(
            values["system_identifier"],
            values["database"],
            values["slot"],
            tuple(values["publications"]),
            dict(values["options"]),
        )


@dataclass(frozen=True)
class RowGroup:
    """One row group of a segment.

    Attributes:
        rows: number of rows.
        nbytes: compressed size in the file, in bytes.
        relations: smallest and largest relation oid in it; None if no row has a relation.
        bare: number of rows without a relation: boundaries, logical messages, types and origins.
        txns: smallest and largest transaction key in it; None if no row belongs to a transaction, or if the file has no
            statistics for them.
        rejected: whether it has messages that were rejected when they were tagged.
    """

    rows: int
    nbytes: int
    relations: tuple[int, int] | None
    bare: int
    txns: tuple[int, int] | None = None
    rejected: bool = False

    def may_hold(self, relations: Collection[int]) -> bool:
        """Whether this row group can have a row of one of these relations (oids)."""
        expect_list("relations", relations, "oids")
        if self.relations is None:
            return False
        first, last = self.relations
        return any(first <= oid <= last for oid in relations)


@dataclass(frozen=True)
class Segment:
    """The content of a segment's footer.

    Attributes:
        path: path or URI of the file.
        source: the source of the stream.
        first_seq, last_seq: ordinals of its first and last message.
        start_lsn, end_lsn: the range of its LSNs; None where unknown. The server need not send again what is before
            `end_lsn`.
        row_groups: its row groups, in the order of the file.
        known: the relations and the state of the stream.
        joined: the segments that `compact` joined into this one; None if it was not joined.
        outcomes: the outcomes of its transactions as written by `segments.outcomes`, if the footer has them.
    """

    path: Path | str
    source: Source
    first_seq: int
    last_seq: int
    start_lsn: int | None
    end_lsn: int | None
    row_groups: tuple[RowGroup, ...]
    known: SegmentCatalog = field(repr=False, compare=False)
    joined: Joined | None = field(default=None, repr=False)
    outcomes: str | None = field(default=None, repr=False)

    @property
    def state(self) -> StreamState:
        """The state of the stream after this segment. A decoder can continue with it.

        Raises:
            ValueError: if a part file of the catalog is damaged or missing.
        """
        return self.known.state

    @property
    def catalog(self) -> Catalog:
        """The relation versions and types known after this segment.

        These are the ones of its own rows, and the ones that later rows may refer to.

        Raises:
            ValueError: as `state`.
        """
        return self.state.catalog

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that are open after this segment, as in the state. Reads only the footer."""
        return self.known.open_txns

    @property
    def rows(self) -> int:
        """The number of tagged rows."""
        return sum(group.rows for group in self.row_groups)

    def replaces(self, first_seq: int, last_seq: int) -> bool:
        """Whether `compact` joined the segment with these ordinals, and others, into this one."""
        return self.joined is not None and self.joined.has(first_seq, last_seq, self.last_seq)

    def row_groups_of(self, relations: Collection[int]) -> list[int]:
        """Ordinals of the row groups that can have rows of these relations (oids)."""
        expect_list("relations", relations, "oids")
        return [k for k, group in enumerate(self.row_groups) if group.may_hold(relations)]


def check_source(path: Path | str, source: Source, other: Source) -> None:
    """Checks that the segment at `path`, which has `source`, may be in one directory with segments of the other source.

    Raises:
        ValueError: if the sources differ.
    """
    if source is other:  # nearly always
        return
    here, there = source.to_dict(), other.to_dict()
    different = [name for name in here if here[name] != there[name]]
    if different:
        raise ValueError(
            f"a directory has segments of one source only: {redacted_uri(path)} has "
            + ", ".join(f"{name} {here[name]!r} instead of {there[name]!r}" for name in different)
        )
