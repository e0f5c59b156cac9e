"""pypgoutput's message classes: one object per message, with its cells as strings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pypgoutput import decoders

from benchmarks.peers.worker import given, messages, serve, write_rows

CLASSES = {
    "B": decoders.Begin,
    "C": decoders.Commit,
    "R": decoders.Relation,
    "I": decoders.Insert,
    "U": decoders.Update,
    "D": decoders.Delete,
    "T": decoders.Truncate,
}
CHANGES = "IUD"


def main() -> None:
    payloads = messages(given()["messages"])

    def decode() -> int:
        rows = 0
        for payload in payloads:
            kind = payload[:1].decode()
            CLASSES[kind](payload)
            rows += kind in CHANGES
        return rows

    def rows() -> Iterator[tuple[str, list[Any]]]:
        names = {}
        for payload in payloads:
            message = CLASSES[payload[:1].decode()](payload)
            if message.byte1 == "R":
                names[message.relation_id] = f"{message.namespace}.{message.relation_name}"
            elif message.byte1 in CHANGES:
                unread = len(message.buffer.read())
                if unread:
                    raise ValueError(f"{unread} bytes of a message were not read")
                cells = message.new_tuple.column_data
                yield names[message.relation_id], [cell.col_data for cell in cells]

    serve(decode, int, lambda path: write_rows(str(Path(path) / "rows"), rows()))


main()
