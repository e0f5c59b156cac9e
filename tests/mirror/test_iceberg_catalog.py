"""Current tables of Iceberg in a catalog that is not the mirror's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pgoutput_fast.mirror import MirrorError, fresh, status_of
from support.buckets import opened_bucket
from support.fresh import ahead, position_now
from support.mirrors import Place, place

__all__ = ["place"]


def _prepare(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )


def _catalog(directory: Path, **more: str) -> dict[str, str]:
    return {"name": "shared", "type": "sql", "uri": f"sqlite:///{directory}/shared.db", **more}


def _rows(properties: dict[str, str]) -> list[dict[str, Any]]:
    """What another program reads."""
    table = load_catalog(**properties).load_table("public.orders")
    return sorted(
        table.scan(selected_fields=("id", "note")).to_arrow().to_pylist(), key=lambda row: row["id"]
    )


@pytest.mark.slow
def test_a_catalog_elsewhere(place: Place, tmp_path: Path) -> None:
    _prepare(place)
    catalog = _catalog(tmp_path)
    more: dict[str, Any] = {"format": "iceberg", "iceberg_catalog": catalog}
    place.run(**more)
    assert _rows(catalog) == [{"id": 1, "note": "new"}, {"id": 2, "note": "new"}]
    with ahead(place, **more):
        place.database.execute(
            "UPDATE orders SET note = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 2"
        )
        lsn = position_now(place, iceberg_catalog=catalog)
        rows = fresh(place.target, "public.orders", ["id", "note"], lsn, iceberg_catalog=catalog)
        assert rows.to_pylist() == [{"id": 1, "note": "paid"}]
    assert _rows(catalog) == [{"id": 1, "note": "paid"}]
    assert not (place.target / "current" / "_catalog.db").exists()
    with pytest.raises(ValueError, match=r"are in the catalog sqlite:.*shared\.db: pass iceberg_catalog="):
        fresh(place.target, "public.orders")
    with pytest.raises(ValueError, match=r"are in the catalog sqlite:.*shared\.db: pass iceberg_catalog="):
        status_of(place.target)
    found = status_of(place.target, iceberg_catalog=catalog)
    assert {(each.state, each.waiting_rows) for each in found} == {("follow", 0)}
    assert not (place.target / "current" / "_catalog.db").exists()
    with pytest.raises(MirrorError, match=r"its iceberg_catalog is sqlite:.*shared\.db, not the default"):
        place.run(format="iceberg")
    with pytest.raises(ValueError, match="iceberg_catalog= is for format='iceberg': leave it out"):
        place.mirror(iceberg_catalog=catalog)


@pytest.mark.slow
def test_tables_in_a_store(place: Place, tmp_path: Path) -> None:
    _prepare(place)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        with pytest.raises(ValueError, match="need a catalog: pass iceberg_catalog="):
            place.mirror(format="iceberg")
        said = {"s3.endpoint": f"http://{bucket.endpoint}", "s3.region": "us-east-1"}
        catalog = _catalog(tmp_path, **said, **{"s3.access-key-id": "key", "s3.secret-access-key": "secret"})
        place.run(format="iceberg", iceberg_catalog=catalog)
        place.database.execute(
            "UPDATE orders SET note = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 2"
        )
        place.run(format="iceberg", iceberg_catalog=catalog)
        assert _rows(catalog) == [{"id": 1, "note": "paid"}]
        rows = fresh(place.target, "public.orders", ["id", "note"], iceberg_catalog=catalog)
        assert rows.to_pylist() == [{"id": 1, "note": "paid"}]
