"""Segments: Parquet files of tagged payloads. Their layout lets a reader of one table skip the other tables.

The rows of a segment stand in this order:

1. control rows (all kinds except inserts, updates and deletes) that concern no relation;
2. control rows that concern a relation;
3. changes, sorted by (relation, version), and in stream order within one version.

A relation gets row groups of its own once its rows are large enough. The footer holds the state of the stream behind
the segment, so a reader or writer can continue from there. This module has what a footer says. `segments.footer` has
its texts, `segments.read` and `segments.write` read and write whole segments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.segments.joined import Joined
from pgoutput_fast.segments.known import Known
from pgoutput_fast.storage.paths import shown

__all__ = ["RowGroup", "Segment", "Source", "check_source"]


@dataclass(frozen=True)
class Source:
    """Where a stream comes from. A directory has segments of one source only.

    Attributes:
        system_identifier: the server's identifier, as `IDENTIFY_SYSTEM` and `pg_control_system()` give it.
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
        """What another source has in place of this one's, a text for each difference.

        >>> Source("7", "shop", "s", ("p",)).differences(Source("7", "shop", "t", ("p",), {"binary": "true"}))
        ['slot s, not t', 'option binary unset, not true']
        """
        pairs = [
            ("server", self.system_identifier, other.system_identifier),
            ("database", self.database, other.database),
            ("slot", self.slot, other.slot),
            ("publications", ", ".join(self.publications), ", ".join(other.publications)),
        ]
        # They say the same as the publications.
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
        relations: smallest and largest relation oid in it; None if no row concerns a relation.
        bare: number of rows that concern no relation: boundaries, logical messages, types and origins.
        txns: smallest and largest transaction key in it; None if no row belongs to a transaction, or if the file has
            no statistics of them.
    """

    rows: int
    nbytes: int
    relations: tuple[int, int] | None
    bare: int
    txns: tuple[int, int] | None = None

    def may_hold(self, relations: Collection[int]) -> bool:
        """Whether this row group can have a row of one of these relations (oids)."""
        expect_list("relations", relations, "oids")
        if self.relations is None:
            return False
        first, last = self.relations
        return any(first <= oid <= last for oid in relations)


@dataclass(frozen=True)
class Segment:
    """What the footer of a segment says.

    Attributes:
        path: path or URI of the file.
        source: where the stream comes from.
        first_seq, last_seq: ordinals of its first and last message.
        start_lsn, end_lsn: the LSNs between which it lies; None where not known. The server need not send again what
            is before `end_lsn`.
        row_groups: its row groups, in the order of the file.
        known: what the footer says of relations, and of the state of the stream.
        joined: the segments that `compact` joined into this one; None if it was written as it is.
        outcomes: the outcomes of its transactions as `segments.outcomes` writes them, if the footer has them.
    """

    path: Path | str
    source: Source
    first_seq: int
    last_seq: int
    start_lsn: int | None
    end_lsn: int | None
    row_groups: tuple[RowGroup, ...]
    known: Known = field(repr=False, compare=False)
    joined: Joined | None = field(default=None, repr=False)
    outcomes: str | None = field(default=None, repr=False)

    @property
    def state(self) -> StreamState:
        """The state of the stream behind this segment. A decoder can continue with it.

        Raises:
            ValueError: if a part file of the catalog is damaged or missing.
        """
        return self.known.state

    @property
    def catalog(self) -> Catalog:
        """The relation versions and types that are known behind this segment.

        These are the ones of its own rows, and the ones that later rows may refer to.

        Raises:
            ValueError: as `state`.
        """
        return self.state.catalog

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that are open behind this segment, as in the state. This reads only the footer."""
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
    """Checks that the segment at `path`, which has `source`, may lie beside segments of the other source.

    Raises:
        ValueError: if the sources differ.
    """
    if source is other:  # nearly always
        return
    here, there = source.to_dict(), other.to_dict()
    different = [name for name in here if here[name] != there[name]]
    if different:
        raise ValueError(
            f"a directory has segments of one source only: {shown(path)} has "
            + ", ".join(f"{name} {here[name]!r} instead of {there[name]!r}" for name in different)
        )
