"""`pgoutput-fast tables` shows the current tables of a mirror, as they are and as they were."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pgoutput_fast.cli.main import main
from pgoutput_fast.mirror import points
from support.forms import and_slow
from support.mirrors import Place, current_of, place

__all__ = ["place"]

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, at timestamptz)",
    "INSERT INTO orders SELECT k, now() FROM generate_series(1, 1000) k",
    "INSERT INTO orders VALUES (0, 'infinity')",
    "CREATE TABLE customers (id int PRIMARY KEY)",
    "CREATE PUBLICATION mirrored FOR TABLE orders, customers",
)


def shown(capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    assert main(["tables", *more, "--json"]) == 0
    return [json.loads(each) for each in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("format", "merge"),
    [("delta", "on_read"), *and_slow([], [("duckdb", "on_write"), ("iceberg", "on_read")])],
)
def test_now_and_then(place: Place, capsys: pytest.CaptureFixture[str], format: str, merge: str) -> None:
    place.database.execute(*TABLES)
    target, dsn = str(place.target), place.database.dsn
    with place.mirror(format=format, merge=merge) as mirror:
        place.run_in(mirror)
        place.database.execute("DELETE FROM orders WHERE id = 3", "INSERT INTO customers VALUES (1), (2)")
        place.run_in(mirror)
    customers, orders = shown(capsys, target, "--dsn", dsn)
    assert (customers["rows"], orders["rows"]) == (2, 1000)
    assert (orders["state"], orders["rejects"], customers["rejects"]) == ("follow", 1, 0)
    assert (orders["bytes"] is None) == (format == "duckdb")
    assert orders["position"] == points(target)[-1].lsn
    assert orders["lag_bytes"] is not None
    if format == "duckdb":
        return
    first, *_, last = points(target)
    before, after = (shown(capsys, target, "--at", each.lsn) for each in (first, last))
    assert [each["rows"] for each in before] == [0, 1001]
    assert [each["rows"] for each in after] == [2, 1000]
    assert [each["version"] for each in after] == [last.versions[each["table"]] for each in after]
    if format == "delta":
        assert current_of(target, "public.orders", before[1]["version"]).num_rows == 1001
    assert last.committed is not None
    assert shown(capsys, target, "--at", last.committed.isoformat()) == after
    assert main(["tables", target, "--at", "2020-01-01T00:00:00Z"]) == 1
    assert "no point as old" in capsys.readouterr().err
    assert main(["tables", target, "--dsn", dsn]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["table", "state", "rows", "bytes", "position", "behind", "seconds", "rejects"]
    assert row.split()[:3] == ["public.orders", "follow", "1,000"]


def test_wrong_times(capsys: pytest.CaptureFixture[str]) -> None:
    for text, what in (
        ("yesterday", "neither a time"),
        (datetime.now(UTC).strftime("%Y-%m-%d"), "time zone"),
    ):
        assert main(["tables", "lake", "--at", text]) == 2
        assert what in capsys.readouterr().err
