"""docs/examples/debezium_events.py, on a real server."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from pgoutput_fast.capture import create_slot
from support import pg
from support.examples import PAGE, run, shop


def _events(database: pg.Database, *statements: str) -> list[dict[str, Any]]:
    database.execute(*statements)
    return [
        json.loads(line) for line in run("debezium_events.py", database.dsn, "events", "shop").splitlines()
    ]


def _shape(event: Any) -> Any:
    """The names of the fields, and the types of the values."""
    if isinstance(event, dict):
        return {name: _shape(each) for name, each in event.items()}
    return type(event).__name__


def test_the_operations(servers: pg.Servers) -> None:
    with shop(servers, "events") as database:
        create_slot(database.dsn, "events")
        begun = time.time_ns() // 1_000_000
        events = _events(
            database,
            "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
            "INSERT INTO orders VALUES (1, repeat('long', 2000), 10.25, '2026-01-01 12:00+00')",
            "UPDATE orders SET amount = 11",
            "UPDATE orders SET id = 2, note = 'short'",
            "DELETE FROM orders",
            "TRUNCATE orders",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            "INSERT INTO orders VALUES (5, 'new')",
            "UPDATE orders SET note = 'paid'",
            "DELETE FROM orders",
        )
        assert _events(database) == []
        # One clock for both: the server runs on this machine.
        assert all(begun <= each["source"]["ts_ms"] <= each["ts_ms"] for each in events)
    placed = "2026-01-01T12:00:00.000000Z"
    first = {"id": 1, "note": "long" * 2000, "amount": "10.25", "placed": placed}
    second = first | {"amount": "11.00", "note": "__debezium_unavailable_value"}
    third = second | {"id": 2, "note": "short"}
    nothing = dict.fromkeys(first)
    new, paid = nothing | {"id": 5, "note": "new"}, nothing | {"id": 5, "note": "paid"}
    assert [(each["op"], each["before"], each["after"]) for each in events] == [
        ("c", None, first),
        ("u", None, second),
        ("u", nothing | {"id": 1}, third),
        ("d", nothing | {"id": 2}, None),
        ("t", None, None),
        ("c", None, new),
        ("u", new, paid),
        ("d", paid, None),
    ]
    places = [tuple(map(int, json.loads(each["source"]["sequence"]))) for each in events]
    assert places == sorted(places)
    assert len({each["source"]["txId"] for each in events}) == len(events)
    assert [each["source"]["lsn"] for each in events] == [lsn for _, lsn in places]


def test_the_event_of_the_page(servers: pg.Servers) -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    shown = json.loads(found[1])
    with shop(servers, "events") as database:
        create_slot(database.dsn, "events")
        _, event = _events(
            database,
            "INSERT INTO orders VALUES (1, 'new', 10.25, '2026-01-01 12:00+00')",
            "UPDATE orders SET note = 'paid'",
        )
    assert (event["before"], event["after"], event["op"]) == (shown["before"], shown["after"], shown["op"])
    assert _shape(event) == _shape(shown)


def test_the_types(servers: pg.Servers) -> None:
    with shop(servers, "events") as database:
        database.execute(
            "CREATE TABLE types (_id int PRIMARY KEY, stamp timestamp, day date, clock time, span interval, back interval, "
            "data bytea, doc jsonb, number uuid, tags text[], price money, period int4range, flag bool, ratio float8)",
            "ALTER PUBLICATION shop ADD TABLE types",
        )
        create_slot(database.dsn, "events")
        (event,) = _events(
            database,
            "INSERT INTO types VALUES (1, '1970-01-02 00:00:00.000001', '1970-02-01', '00:00:01.5', "
            "'1 year 2 months 3 days 4:05:06.5', '-14 months -1 minute', '\\x00ff', '{\"a\": 1}', "
            "'00000000-0000-0000-0000-000000000001', '{a,NULL}', '1.50', '[1,5)', true, 0.5)",
        )
    assert event["after"] == {
        "_id": 1,
        "stamp": 86_400_000_001,
        "day": 31,
        "clock": 1_500_000,
        "span": "P1Y2M3DT4H5M6.5S",
        "back": "P-1Y-2M0DT-0H-1M-0S",
        "data": "AP8=",
        "doc": '{"a": 1}',
        "number": "00000000-0000-0000-0000-000000000001",
        "tags": ["a", None],
        "price": "1.50",
        "period": {"lower": 1, "upper": 5, "lower_inc": True, "upper_inc": False, "empty": False},
        "flag": True,
        "ratio": 0.5,
    }
