"""A mirror with wrong arguments, or with the dsn of another server, is refused before anything is changed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_fast import Options
from pgoutput_fast.capture import create_slot, drop_slot, find_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror, MirrorError, fresh
from pgoutput_fast.postgres.session import current_lsn
from support import pg
from support.capturing import drop_when_free
from support.mirrors import Place, current_of, opened, place

__all__ = ["place"]

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
_PUBLICATION = "CREATE PUBLICATION mirrored FOR TABLE t"


def _contents(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }


def _values(place: Place) -> list[str]:
    return sorted(current_of(place.target, "public.t")["v"].to_pylist())


def test_other_types(place: Place) -> None:
    """An option that was forgotten would change the types of all numerics."""
    place.database.execute(
        "CREATE TABLE n (id int PRIMARY KEY, v numeric)", "INSERT INTO n VALUES (1, 1.5)",
        "CREATE PUBLICATION mirrored FOR TABLE n",
    )  # fmt: skip
    options = Options(on_error="quarantine", numeric=pa.decimal128(38, 6))
    place.run(options=options)
    place.database.execute("INSERT INTO n VALUES (2, 2.5)")
    with (
        place.mirror() as mirror,
        pytest.raises(
            MirrorError,
            match=r"its column types are numeric decimal128\(38, 6\), uuid string, not numeric string",
        ),
    ):
        mirror.run(until_lsn="now")
    place.run(options=options)
    assert sorted(current_of(place.target, "public.n")["v"].to_pylist()) == [Decimal("1.5"), Decimal("2.5")]


@pytest.mark.slow
def test_another_server(servers: pg.Servers, tmp_path: Path) -> None:
    """It has tables of the same names. Only a repair that is told so gives the tables its rows."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    other = pg.Database(servers[max(servers)])
    with Server(pg.installations()[max(servers)]) as server, opened(server, tmp_path) as place:
        place.database.execute(_TABLE, "INSERT INTO t VALUES (1, 'mine'), (2, 'mine')", _PUBLICATION)
        with place.mirror() as mirror:
            mirror.run(until_lsn="now")
            place.database.execute("INSERT INTO t VALUES (9, 'mine')")
            mirror.run(until_lsn="now")
        # As if an earlier version had begun the mirror. The segments have the source, too.
        path = place.target / "_mirror" / "beginning.json"
        known = json.loads(path.read_text())
        assert known.pop("source")[1] == place.database.name
        path.write_text(json.dumps(known))
        there = _contents(place.target)
        for more in ({"format": "iceberg"}, {"segments": tmp_path / "elsewhere"}):
            with place.mirror(**more) as mirror:
                for refused in (mirror.status, lambda: mirror.run(until_lsn="now"), mirror.repair):
                    with pytest.raises(MirrorError, match="is the target of another mirror"):
                        refused()
        other.execute(_TABLE, "INSERT INTO t VALUES (2, 'theirs'), (3, 'theirs')", _PUBLICATION)
        while current_lsn(other.dsn) < current_lsn(place.database.dsn):
            other.execute("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()")
        try:
            with Mirror(other.dsn, place.slot, ["mirrored"], place.target, seconds=0.5) as mirror:
                for task in (
                    lambda: mirror.run(until_lsn="now"),
                    mirror.repair,
                    lambda: mirror.reload("public.t"),
                ):
                    with pytest.raises(
                        MirrorError, match=r"but the dsn names .* \(--repair --another-source\)"
                    ):
                        task()
            assert _contents(place.target) == there
            assert fresh(place.target, "public.t").num_rows == 3
            with Mirror(other.dsn, place.slot, ["mirrored"], place.target, seconds=0.5) as mirror:
                create_slot(other.dsn, place.slot)
                with pytest.raises(
                    MirrorError, match="exists on this server, and this mirror did not make it"
                ):
                    mirror.repair(another_source=True)
                drop_slot(other.dsn, place.slot)
                assert [each.table for each in mirror.repair(another_source=True)] == ["public.t"]
                other.execute("INSERT INTO t VALUES (4, 'theirs')")
                mirror.run(until_lsn="now")
            assert _values(place) == ["theirs"] * 3
            with place.mirror() as mirror, pytest.raises(MirrorError, match="but the dsn names"):
                mirror.run(until_lsn="now")
        finally:
            if find_slot(other.dsn, place.slot) is not None:
                drop_when_free(other.dsn, place.slot)
            other.drop()
