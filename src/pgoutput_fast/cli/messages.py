"""Shows messages: paragraphs for a person, lines of JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

from pgoutput_fast.catalog.formatting import format_name
from pgoutput_fast.cli.context import Message
from pgoutput_fast.cli.fields import fields_of
from pgoutput_fast.cli.filters import Filters
from pgoutput_fast.cli.screen import lsn_text, objects
from pgoutput_fast.messages.describe import described
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["show", "writer"]

_STYLES = {
    "insert": "green",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "relation": "cyan",
    "type": "cyan",
    "unknown": "bold red",
}


# Takes a message, its description, and the byte at which it is damaged, or None.
Write: TypeAlias = Callable[[Message, str, "int | None"], object]


def writer(*, json: bool) -> Write:
    """What shows each message: as a line of JSON, or as a paragraph."""
    return _write_json if json else _Paragraphs().write


def show(messages: Iterable[Message], filters: Filters, limit: int | None, write: Write) -> tuple[int, int]:
    """Shows the selected messages.

    Args:
        messages: the messages.
        filters: the messages to show.
        limit: maximum number of messages; None for all.
        write: takes each of them.

    Returns:
        (number of messages shown, number of damaged ones among them).
    """
    count = damaged = 0
    if limit == 0:
        return 0, 0
    for message in messages:
        # An unknown message is shown with any filter, because nothing else is known about it.
        if not filters.wants(message) and message.kind != "unknown":
            continue
        text, damaged_at = described(message.data, in_stream=message.in_stream, catalog=message.catalog)
        damaged += damaged_at is not None
        write(message, text, damaged_at)
        count += 1
        if count == limit:
            break
    return count, damaged


def _position(message: Message) -> list[str]:
    """The position of the message in the stream."""
    parts = []
    if message.lsn is not None:
        parts.append(f"LSN {format_lsn(message.lsn)}")
    if message.xid is not None:
        parts.append(f"xid {message.xid}")
    if len(message.relations) == 1:
        (relation,) = message.relations
        parts.append(f"{format_name(relation.namespace)}.{format_name(relation.name)}")
    return parts


class _Paragraphs:
    """Writes a paragraph for each message."""

    def __init__(self) -> None:
        # A console per line would take longer than the message.
        self._console = Console(highlight=False) if sys.stdout.isatty() else None

    def write(self, message: Message, text: str, damaged_at: int | None) -> None:
        first, _, rest = text.partition("\n")
        head = f"{message.seq}: {'; '.join([first, *_position(message)])}"
        if self._console is None:
            sys.stdout.write(f"{head}\n{rest}\n" if rest else f"{head}\n")
            sys.stdout.flush()
            return
        style = "bold red" if damaged_at is not None else _STYLES.get(message.kind, "bold")
        self._console.print(Text(head, style), soft_wrap=True)
        for line in rest.splitlines():
            is_bad = line.startswith("  damaged at byte")
            self._console.print(Text(line, "bold red" if is_bad else ""), soft_wrap=True)


def _write_json(message: Message, text: str, damaged_at: int | None) -> None:
    relation = message.relations[0] if message.relations else None
    values: dict[str, Any] = {
        "seq": message.seq,
        "kind": message.kind,
        "lsn": lsn_text(message.lsn),
        "xid": message.xid,
        "in_stream": message.in_stream,
        "tables": [each.qualified_name for each in message.relations],
        "bytes": len(message.data),
        **fields_of(message.data, message.in_stream, relation),
    }
    objects([values])
