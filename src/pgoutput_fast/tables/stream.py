"""The stream whose changes a table in a lake has. Every stream numbers its messages from 0."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from pgoutput_fast.base.documents import parsed_json

__all__ = ["Stream"]


@dataclass(frozen=True)
class Stream:
    """A stream, and the position of a table in it.

    A recreated slot has the same names, but its messages have later LSNs. So a table keeps LSNs, too.

    Attributes:
        digest: a hash of 63 bits of the names of server, database and slot.
        seq: ordinal of the last message that the table got from segments.
        low_lsn: the segment with this message reached this LSN; None if unknown.
        high_lsn: segments up to this message have no LSN after this one; None if unknown.
        names: system identifier of the server, database and slot; None if only the digest is known.
    """

    digest: int
    seq: int
    low_lsn: int | None
    high_lsn: int | None
    names: tuple[str, str, str] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, names: tuple[str, str, str], seq: int, low_lsn: int | None = None, high_lsn: int | None = None
    ) -> Stream:
        """The stream with these names.

        >>> Stream.of(("7", "shop", "slot"), 9).digest == Stream.of(("7", "shop", "other"), 9).digest
        False
        """
        found = hashlib.sha256(json.dumps(names).encode()).digest()
        return cls(int.from_bytes(found[:8], "big") >> 1, seq, low_lsn, high_lsn, names)

    def __str__(self) -> str:
        """Names the stream.

        >>> str(Stream.of(("7", "shop", "to_lake"), 9))
        "slot 'to_lake' of database 'shop' (server 7)"
        """
        if self.names is None:
            return "another slot, database or server"
        server, database, slot = self.names
        return f"slot {slot!r} of database {database!r} (server {server})"

    def to_json(self) -> str:
        """The stream as text.

        Raises:
            ValueError: if its names are unknown.
        """
        if self.names is None:
            raise ValueError("the names of the stream are not known")
        server, database, slot = self.names
        values = {"system_identifier": server, "database": database, "slot": slot}
        return json.dumps(values | {"seq": self.seq, "low_lsn": self.low_lsn, "high_lsn": self.high_lsn})

    @classmethod
    def from_json(cls, text: str) -> Stream:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is not from `to_json`.

        >>> stream = Stream.of(("7", "shop", "slot"), 9, 100, None)
        >>> Stream.from_json(stream.to_json()) == stream
        True
        """
        try:
            values = parsed_json(text)
            names = (str(values["system_identifier"]), str(values["database"]), str(values["slot"]))
            low, high = (None if values[k] is None else int(values[k]) for k in ("low_lsn", "high_lsn"))
            return cls.of(names, int(values["seq"]), low, high)
        except (KeyError, TypeError):
            raise ValueError("this is not the description of a stream") from None
