"""Selects the messages that a command shows."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like, quote_qualified_name
from pgoutput_fast.catalog.relations import Relation, no_such_table
from pgoutput_fast.cli.context import Message
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.protocol.kinds import KIND_NAMES
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = ["Filters", "expect_tables", "table_names"]

_LAST = (1 << 64) - 1


def table_names(given: Sequence[str] | None) -> frozenset[str] | None:
    """The qualified names of tables as quoted by SQL; None for all tables.

    Raises:
        UsageError: for an invalid qualified name.

    >>> sorted(table_names(["public.orders", 'public."Order Lines"']))
    ['public."Order Lines"', 'public.orders']
    """
    if not given:
        return None
    parsed = {each: parse_qualified_name(each) for each in given}
    for each, parts in parsed.items():
        if parts is None:
            meant = shlex.quote(qualified_like(each))
            raise UsageError(f"--table {each}: name schema and table as SQL does, as in --table {meant}")
    return frozenset(quote_qualified_name(*parts) for parts in parsed.values() if parts is not None)


def expect_tables(requested: Collection[str] | None, existing: Collection[Relation]) -> None:
    """Checks that the input has these tables.

    Raises:
        InputError: if it lacks one; the text suggests similar names.
    """
    names = {relation.qualified_name for relation in existing}
    for table in sorted(requested or ()):
        if table not in names:
            raise InputError(no_such_table(table, existing))


@dataclass
class Filters:
    """Selects messages.

    Attributes:
        tables: the names of the tables; None for all, and for messages without a table.
        xids: the transactions; empty for all.
        kinds: names of kinds; empty for all.
        first_lsn, last_lsn: positions, inclusive.
        without_lsn: the number of messages skipped because their LSN is unknown.
    """

    tables: frozenset[str] | None = None
    xids: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    first_lsn: int = 0
    last_lsn: int = _LAST
    without_lsn: int = 0
    seen: dict[int, Relation] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tables: Sequence[str] | None,
        xids: Sequence[int] | None,
        lsns: str | None,
        kinds: Sequence[str] | None,
    ) -> Filters:
        """Returns the filters given by the arguments of a command.

        Raises:
            UsageError: for a malformed argument.
        """
        first, last = _range(lsns)
        chosen = {name for each in kinds or () for name in each.lower().replace(" ", "_").split(",")}
        unknown = sorted(chosen - {*KIND_NAMES.values(), "unknown"})
        if unknown:
            names = ", ".join(sorted(KIND_NAMES.values()))
            raise UsageError(f"--kind {unknown[0]}: this kind of message does not exist; choose from {names}")
        return cls(table_names(tables), frozenset(xids or ()), frozenset(chosen), first, last)

    def wants(self, message: Message) -> bool:
        """Whether to show this message."""
        for relation in message.relations:
            self.seen[relation.oid] = relation
        if self.tables is not None and not any(
            relation.qualified_name in self.tables for relation in message.relations
        ):
            return False
        if (self.xids and message.xid not in self.xids) or (self.kinds and message.kind not in self.kinds):
            return False
        if (self.first_lsn, self.last_lsn) == (0, _LAST):
            return True
        position = message.position
        self.without_lsn += position is None
        return position is not None and self.first_lsn <= position <= self.last_lsn

    @property
    def is_open(self) -> bool:
        """Whether every message is shown."""
        is_any_lsn = (self.first_lsn, self.last_lsn) == (0, _LAST)
        return self.tables is None and not self.xids and not self.kinds and is_any_lsn

    def expect_tables(self) -> None:
        """Checks that all requested tables occurred.

        Raises:
            InputError: if one did not.
        """
        expect_tables(self.tables, list(self.seen.values()))


def _range(lsns: str | None) -> tuple[int, int]:
    if lsns is None:
        return 0, _LAST
    first, dots, last = lsns.partition("..")
    try:
        if not dots:
            return parse_lsn(first), parse_lsn(first)
        return parse_lsn(first) if first else 0, parse_lsn(last) if last else _LAST
    except ValueError:
        raise UsageError(
            f"--lsn {lsns}: write a range of LSNs such as 0/1B0D988..0/1B0E000, or 0/1B0D988.."
        ) from None
