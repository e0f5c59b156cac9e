"""What happens in a demo, for its page and its last lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Progress", "Report", "TableResult"]


@dataclass
class TableResult:
    """What the demo knows of a table.

    Attributes:
        loaded: rows of the load.
        changes: rows of changes that Spark wrote.
        rows: rows after these changes.
        mirrored: rows of the mirror.
        version: the version of the mirror's table.
        equal: {who copied the table: whether all rows equal the server's}.
    """

    loaded: int = 0
    changes: int = 0
    rows: int = 0
    mirrored: int = 0
    version: int = 0
    equal: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """The server and the mirror at a moment.

    Attributes:
        seconds: since the start of the mirror.
        server: the end of the server's WAL.
        mirror: the LSN up to which the mirror has everything; None before the end of its load.
    """

    seconds: float
    server: int
    mirror: int | None


@dataclass
class Report:
    """What happened.

    Attributes:
        orders: how many orders the shop took.
        server: the server's name and version.
        messages, nbytes: what the capture got, and its size in bytes.
        segments: how many segments it wrote.
        decode_seconds: to decode them on one core.
        spark_seconds: in which Spark wrote the tables, without its start.
        spark_rows: rows that Spark wrote.
        tables: {qualified name: result}.
        sample: (columns, rows) of some changes, as text.
        progress: of the mirror, in order.
        events: (seconds since the start of the mirror, text).
        query: the SQL that DuckDB and the server were asked.
        answer: (columns, rows) of DuckDB's answer.
        failures: what is not as it should be.
        seconds: the time of the whole demo.
    """

    orders: int
    server: str = ""
    messages: int = 0
    nbytes: int = 0
    segments: int = 0
    decode_seconds: float = 0.0
    spark_seconds: float = 0.0
    spark_rows: int = 0
    tables: dict[str, TableResult] = field(default_factory=dict)
    sample: tuple[list[str], list[list[str]]] = field(default_factory=lambda: ([], []))
    progress: list[Progress] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    query: str = ""
    answer: tuple[list[str], list[tuple[Any, ...]]] = field(default_factory=lambda: ([], []))
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self, name: str) -> TableResult:
        """The result of a table, which is new if it is not known yet."""
        return self.tables.setdefault(name, TableResult())
