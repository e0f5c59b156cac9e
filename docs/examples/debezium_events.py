"""Give the events that a consumer of Debezium's JSON expects.

    python debezium_events.py DSN SLOT PUBLICATION

Prints an event for each change that committed before the program started, as JSON. docs/examples.md says how the events
differ from those of Debezium.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo

# What Debezium gives for a large value that did not change, so that the server did not send it.
UNAVAILABLE = "__debezium_unavailable_value"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


def interval(cell: pa.MonthDayNano) -> str:
    """An interval in the form of ISO 8601. Each part has its own sign."""
    years, months = int(cell.months / 12), int(cell.months - 12 * int(cell.months / 12))
    micros = abs(cell.nanoseconds) // 1000
    sign = "-" if cell.nanoseconds < 0 else ""
    hours, minutes, seconds = micros // 3_600_000_000, micros // 60_000_000 % 60, micros % 60_000_000
    return (
        f"P{years}Y{months}M{cell.days}DT{sign}{hours}H{sign}{minutes}M{sign}{Decimal(seconds) / 1_000_000}S"
    )


def value(cell: Any) -> Any:
    """A cell as Debezium writes it, with the modes decimal=string, interval=string and time precision=adaptive."""
    match cell:
        case pa.MonthDayNano():
            return interval(cell)
        case Decimal():
            return str(cell)
        case bytes():
            return base64.b64encode(cell).decode()
        case datetime.datetime() if cell.tzinfo is not None:  # timestamptz
            return cell.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case datetime.datetime():  # timestamp: microseconds
            return (cell.replace(tzinfo=datetime.UTC) - EPOCH) // MICROSECOND
        case datetime.date():  # days
            return (cell - EPOCH.date()).days
        case datetime.time():  # microseconds
            return (datetime.datetime.combine(EPOCH.date(), cell, datetime.UTC) - EPOCH) // MICROSECOND
        case list():
            return [value(each) for each in cell]
        case dict():
            return {name: value(each) for name, each in cell.items()}
    return cell


def image(relation: pgo.Relation, row: dict[str, Any] | None) -> dict[str, Any] | None:
    """The table's columns of a row, without the metadata columns."""
    if row is None:
        return None
    unsent = row["_unchanged"] or ()
    names = [column.name for column in relation.columns]
    return {name: UNAVAILABLE if name in unsent else value(row[name]) for name in names}


def rows_of(decoded: pgo.Decoded) -> Iterator[tuple[pgo.Relation, list[dict[str, Any]]]]:
    """The rows of each change of all tables, in the order in which the changes were committed."""
    found: dict[tuple[int, int, int], tuple[pgo.Relation, list[dict[str, Any]]]] = {}
    for changes in decoded.changes:
        for row in changes.batch.to_pylist():
            place = (row["_commit_lsn"], row["_seq"], changes.relation.oid)
            found.setdefault(place, (changes.relation, []))[1].append(row)
    for place in sorted(found):
        yield found[place]


def events(decoded: pgo.Decoded, server: str, database: str) -> Iterator[dict[str, Any]]:
    """The events of committed changes.

    Args:
        decoded: with `Options(transactions="committed")`, as `pgo.follow` gives it.
        server: Debezium's `topic.prefix`.
        database: the name of the database.
    """
    for relation, rows in rows_of(decoded):
        images = {row["_change_type"]: row for row in rows}
        row = images.get("update_postimage", rows[-1])
        old = images.get("update_preimage") or images.get("delete")
        new = images.get("insert") or images.get("update_postimage")
        committed = (row["_commit_timestamp"] - EPOCH) // MICROSECOND
        source = {
            "connector": "postgresql",
            "name": server,
            "ts_ms": committed // 1000,
            "ts_us": committed,
            "snapshot": "false",
            "db": database,
            "schema": relation.namespace,
            "table": relation.name,
            "txId": row["_xid"],
            "lsn": row["_lsn"],
            "sequence": json.dumps([str(row["_commit_lsn"]), str(row["_lsn"])]),
        }
        yield {
            "before": image(relation, old),
            "after": image(relation, new),
            "source": source,
            "op": {"insert": "c", "update_postimage": "u", "delete": "d", "truncate": "t"}[
                row["_change_type"]
            ],
            "ts_ms": time.time_ns() // 1_000_000,
        }


def main() -> None:
    dsn, slot, publication = sys.argv[1:]
    for decoded, acknowledge in pgo.follow(dsn, slot, [publication], until_lsn="now"):
        for event in events(decoded, "shop", "shop"):
            print(json.dumps(event))
        sys.stdout.flush()
        acknowledge()


if __name__ == "__main__":
    main()
