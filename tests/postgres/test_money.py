"""Values of type money whose digits are not those that the package decodes: nothing guesses them."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import check
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.postgres import money
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.snapshot import Snapshot
from support import pg
from support.capturing import drop_when_free

pytestmark = pytest.mark.few_servers


def _make(database: pg.Database) -> None:
    database.execute(
        "DROP PUBLICATION IF EXISTS paid",
        "DROP TABLE IF EXISTS paid, unpaid",
        "DROP TYPE IF EXISTS sold, prices",
        "DROP DOMAIN IF EXISTS price",
        "CREATE DOMAIN price AS money",
        f"CREATE TYPE sold AS (what text, at {'price[]' if database.version >= 11 else 'money[]'})",
        "CREATE TYPE prices AS RANGE (subtype = money)",
        "CREATE TABLE paid (id int PRIMARY KEY, m money, p price, l money[], s sold, r prices)",
        "INSERT INTO paid (id, m, p, l) VALUES (1, 12.34::money, 5.6::money, ARRAY[7::money])",
        "CREATE TABLE unpaid (id int PRIMARY KEY)",
        "CREATE PUBLICATION paid FOR TABLE paid, unpaid",
    )


def test_two_digits_are_decoded(database: pg.Database) -> None:
    _make(database)
    assert money.digits_of_money(database.dsn) == 2
    assert not [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]
    with Snapshot(database.dsn, ["paid"]) as snapshot:
        ((_, batch),) = snapshot.read()
    (row,) = batch.to_pylist()
    assert (row["m"], row["p"], row["l"]) == (Decimal("12.34"), Decimal("5.60"), [Decimal("7.00")])


@pytest.mark.newest_server
def test_other_digits_are_refused(
    database: pg.Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _make(database)
    monkeypatch.setattr(money, "_DIGITS", 3)  # few machines have a locale with another number than two
    found = [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]
    assert [each.subject for each in found] == ["public.paid"] * 5
    assert [each.problem.split("'")[1] for each in found] == ["l", "m", "p", "r", "s"]
    assert "column 'l' has values of type money, and lc_monetary gives money 2 digits" in found[0].problem
    with Snapshot(database.dsn, ["paid"]) as snapshot:
        assert list(snapshot.read(["public.unpaid"])) == []
        with pytest.raises(ValueError, match=r"public\.paid: column 'm' has values of type money"):
            snapshot.read()
    slot = f"{database.name}_money"
    try:
        with Mirror(database.dsn, slot, ["paid"], tmp_path, seconds=0.5) as mirror:
            mirror.run(until_lsn="now")
            states = {each.table: str(each.error) for each in mirror.status()}
    finally:
        drop_when_free(database.dsn, slot)
    assert "column 'm' has values of type money" in states["public.paid"]
    assert states["public.unpaid"] == "None"
    database.execute("ALTER TABLE paid ALTER m TYPE numeric, ALTER p TYPE numeric, DROP l, DROP r, DROP s")
    assert not [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]


def test_columns_that_are_not_sent_or_not_decoded(
    database: pg.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(money, "_DIGITS", 3)
    database.execute(
        "DROP PUBLICATION IF EXISTS paid",
        "DROP TABLE IF EXISTS paid",
        "CREATE TABLE paid (id int PRIMARY KEY, m money)",
        "CREATE PUBLICATION paid FOR TABLE paid",
        "INSERT INTO paid VALUES (1, 2::money)",
    )
    with Snapshot(database.dsn, ["paid"], options=pgo.Options(columns={"public.paid": ["id"]})) as snapshot:
        ((_, batch),) = snapshot.read()
    assert batch.column("id").to_pylist() == [1]
    if database.version >= 15:
        database.execute("ALTER PUBLICATION paid SET TABLE paid (id)")
        assert not [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]
    if database.version >= 12:
        database.execute(
            "ALTER PUBLICATION paid SET TABLE paid",
            "ALTER TABLE paid DROP m",
            "ALTER TABLE paid ADD m money GENERATED ALWAYS AS ('2'::money) STORED",
        )
        assert not [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]


def test_the_pins_of_a_session_do_not_hide_the_setting(database: pg.Database) -> None:
    """A locale with other digits is seldom there. So this looks at what such a session asks the server."""
    with closing(connect(database.dsn, pinned=False)) as session, session.cursor() as cursor:
        cursor.execute("SELECT setting FROM pg_settings WHERE name = 'lc_monetary'")
        own = cursor.fetchone()
    database.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {database.name} SET lc_monetary = 'C.UTF-8'")
    try:
        with closing(connect(database.dsn, pinned=False)) as session, session.cursor() as cursor:
            cursor.execute("SHOW lc_monetary")
            assert cursor.fetchone() == ("C.UTF-8",) != own
    finally:
        database.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {database.name} RESET lc_monetary")
