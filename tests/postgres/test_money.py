"""Values of type money whose digits are not those that the package decodes: nothing guesses them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from pgoutput_fast.capture import check
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.postgres import money
from pgoutput_fast.snapshot import Snapshot
from support import pg
from support.capturing import drop_when_free

pytestmark = pytest.mark.few_versions


def _make(database: pg.Database) -> None:
    database.execute(
        "DROP PUBLICATION IF EXISTS paid",
        "DROP TABLE IF EXISTS paid, unpaid",
        "DROP DOMAIN IF EXISTS price",
        "CREATE DOMAIN price AS money",
        "CREATE TABLE paid (id int PRIMARY KEY, m money, p price, l money[])",
        "INSERT INTO paid VALUES (1, 12.34::money, 5.6::money, ARRAY[7::money])",
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


def test_other_digits_are_refused(
    database: pg.Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _make(database)
    monkeypatch.setattr(money, "_DIGITS", 3)  # few machines have a locale with another number than two
    found = [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]
    assert [each.subject for each in found] == ["public.paid"] * 3
    assert "column 'l' has type money, and lc_monetary gives money 2 digits" in found[0].problem
    with Snapshot(database.dsn, ["paid"]) as snapshot:
        assert list(snapshot.read(["public.unpaid"])) == []
        with pytest.raises(ValueError, match=r"public\.paid: column 'm' has type money"):
            snapshot.read()
    slot = f"{database.name}_money"
    try:
        with Mirror(database.dsn, slot, ["paid"], tmp_path, seconds=0.5) as mirror:
            mirror.run(until_lsn="now")
            states = {each.table: str(each.error) for each in mirror.status()}
    finally:
        drop_when_free(database.dsn, slot)
    assert "column 'm' has type money" in states["public.paid"]
    assert states["public.unpaid"] == "None"
    database.execute("ALTER TABLE paid ALTER m TYPE numeric, ALTER p TYPE numeric, DROP l")
    assert not [each for each in check(database.dsn, ["paid"]).findings if each.level == "error"]
