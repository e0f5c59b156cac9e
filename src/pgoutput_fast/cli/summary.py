"""What an input has in all: messages of each kind, for each table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgoutput_fast.base.display import counted, escaped
from pgoutput_fast.cli.context import Message
from pgoutput_fast.cli.screen import line, lsn_text, objects, size, table

__all__ = ["Summary"]

_CHANGES = ("insert", "update", "delete", "truncate")


@dataclass
class Summary:
    """Counts messages.

    Attributes:
        kinds: {kind: messages}.
        nbytes: the bytes of all messages.
        first_lsn, last_lsn: the least and the largest known position.
        tables: {qualified name: {kind: messages}}.
        table_bytes: {qualified name: bytes of its changes}.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    first_lsn: int | None = None
    last_lsn: int | None = None
    tables: dict[str, Counter[str]] = field(default_factory=dict)
    table_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, message: Message, _text: str, _damaged_at: int | None) -> None:
        """Counts a message. A truncate counts for each of its tables."""
        self.kinds[message.kind] += 1
        self.nbytes += len(message.data)
        if (lsn := message.position) is not None:
            self.first_lsn = lsn if self.first_lsn is None else min(self.first_lsn, lsn)
            self.last_lsn = lsn if self.last_lsn is None else max(self.last_lsn, lsn)
        if message.kind in _CHANGES:
            for relation in message.relations:
                name = relation.qualified_name
                self.tables.setdefault(name, Counter())[message.kind] += 1
                self.table_bytes[name] += len(message.data)

    def show(self, *, json: bool) -> None:
        """Shows the counts: a row per table, and a line for all messages; or one JSON object."""
        lsns = [lsn_text(each) for each in (self.first_lsn, self.last_lsn)]
        if json:
            tables = {
                name: {**{kind: found[kind] for kind in _CHANGES}, "bytes": self.table_bytes[name]}
                for name, found in sorted(self.tables.items())
            }
            values = {
                "messages": self.kinds.total(),
                "bytes": self.nbytes,
                "kinds": dict(sorted(self.kinds.items())),
            }
            objects([{**values, "first_lsn": lsns[0], "last_lsn": lsns[1], "tables": tables}])
            return
        if self.tables:
            table(
                ["table", *_CHANGES, "bytes"],
                [
                    (escaped(name), *(f"{found[kind]:,}" for kind in _CHANGES), size(self.table_bytes[name]))
                    for name, found in sorted(self.tables.items())
                ],
                right=[*_CHANGES, "bytes"],
            )
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.kinds.items()))
        between = "" if lsns[0] is None else f"; LSNs {lsns[0]} to {lsns[1]}"
        line(f"{counted(self.kinds.total(), 'message')}, {size(self.nbytes)}: {kinds or 'none'}{between}")
