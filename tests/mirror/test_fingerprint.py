"""What two readings of the catalogs say of rows that came before; each rule for itself, without a server."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from pgoutput_fast.mirror.schema_changes.fingerprint import (
    NAMED,
    CatalogColumn,
    Fingerprint,
    Leaf,
    RowQuestion,
    difference,
    is_only_repacked,
    lacking,
    row_questions,
)
from pgoutput_fast.postgres.publications import OPERATIONS

_ID, _NOTE = CatalogColumn(1, 23, -1, False, False, 700), CatalogColumn(2, 1043, 9, False, False, 700)
_RENAMED = replace(_NOTE, xmin=800)


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


_PRICE = CatalogColumn(3, 1700, _numeric(8, 2), False, False, 700)
_TABLE = Fingerprint(
    5,
    100,
    200,
    {"id": _ID, "note": _NOTE, "price": _PRICE},
    (),
    OPERATIONS,
    ("publication 1 700",),
    horizon=750,
    natts=3,
)
_ROOT = replace(_TABLE, filenode=0, toast=0, leaves={"6": Leaf("public.p", 101, (740,))})


def _with(**columns: CatalogColumn) -> Fingerprint:
    return replace(_TABLE, columns={**_TABLE.columns, **columns})


@pytest.mark.parametrize(
    "now",
    [
        _TABLE,
        replace(_TABLE, filenode=101),  # VACUUM FULL, CLUSTER or TRUNCATE
        replace(_TABLE, members=(*_TABLE.members, "publication 2 800")),
        replace(_TABLE, columns={"id": _ID, "price": _PRICE}),
        replace(_TABLE, columns={"id": _ID, "price": _PRICE, "text": _RENAMED}),
        _with(price=replace(_PRICE, typmod=_numeric(12, 2))),
        _with(note=replace(_NOTE, typmod=-1)),
        _with(note=replace(_NOTE, type_oid=25, typmod=-1)),
        _with(note=replace(_NOTE, xmin=800, is_filled=True)),  # SET DEFAULT
        _with(new=CatalogColumn(4, 23, -1, False, False, 800)),
        _with(new=CatalogColumn(4, 23, -1, True, True, 800, missing="5")),
        _with(new=CatalogColumn(4, 23, -1, True, False, 800, is_published=False)),
    ],
)
def test_rows_stay_as_they_are(now: Fingerprint) -> None:
    assert difference(_TABLE, now) is None
    assert list(row_questions(_TABLE, now)) == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(_TABLE, oid=6), "another table"),
        (replace(_TABLE, members=("publication 1 701",)), "its publication was altered"),
        (replace(_TABLE, filters=("(id > 1)",)), "row filter"),
        (replace(_TABLE, toast=201), "rewritten by ALTER TABLE"),
        (replace(_with(note=replace(_NOTE, xmin=800)), filenode=101), "its columns were altered"),
        (_with(note=replace(_NOTE, number=4)), "'note' was renamed, or added again"),
        # Another column was altered, too: perhaps both were renamed, and back.
        (replace(_TABLE, columns={"id": replace(_ID, xmin=800), "text": _RENAMED}), "'text' was renamed"),
        (replace(_TABLE, columns={"id": _ID, "text": replace(_RENAMED, type_oid=1042)}), "the type of"),
        (_with(price=replace(_PRICE, typmod=_numeric(7, 2))), "the type of its column 'price'"),
        (_with(price=replace(_PRICE, typmod=_numeric(9, 3))), "the type of its column 'price'"),
        (_with(price=replace(_PRICE, typmod=-1)), "the type of its column 'price'"),
        # A column 4 came and went in between, perhaps under the same name.
        (_with(new=CatalogColumn(5, 23, -1, False, False, 800)), "'new' was renamed, or added again"),
        (_with(note=replace(_NOTE, typmod=8)), "the type of its column 'note'"),
        (_with(note=replace(_NOTE, type_oid=1042)), "the type of its column 'note'"),
        (_with(new=CatalogColumn(4, 23, -1, True, False, 800)), "'new' has values in old rows"),
        (_with(new=CatalogColumn(4, 23, -1, True, True, 800)), "'new' has values in old rows"),
    ],
)
def test_rows_may_differ(now: Fingerprint, why: str) -> None:
    assert why in str(difference(_TABLE, now))


def test_a_column_that_comes_back_after_a_look() -> None:
    """The current table still has the dropped column. So its number is not forgotten."""
    looked = replace(_TABLE, columns={"id": _ID, "price": _PRICE}, horizon=800).with_dropped_columns(_TABLE)
    assert looked == _TABLE  # nothing to write down
    assert "added again" in str(difference(looked, _with(note=replace(_NOTE, number=4))))


def test_vacuum_full_writes_a_kept_default_into_the_rows() -> None:
    before = _with(new=CatalogColumn(4, 23, -1, True, True, 740))
    now = replace(_with(new=CatalogColumn(4, 23, -1, False, False, 800)), filenode=101)
    assert difference(before, now) is None
    # Without a TOAST table, ALTER TYPE ... USING looks the same.
    assert "columns were altered" in str(difference(replace(before, toast=0), replace(now, toast=0)))


def test_another_file_that_hides_nothing() -> None:
    """REPACK (CONCURRENTLY) was seen at work, or the server refuses SET UNLOGGED: the columns alone decide."""
    kept = _with(new=CatalogColumn(4, 23, -1, True, True, 740))
    packed = _with(new=CatalogColumn(4, 23, -1, False, False, 800))
    other = {"filenode": 101, "toast": 201, "written": 800}
    seen = replace(kept, repack=800)
    assert difference(seen, replace(packed, **other)) is None
    assert is_only_repacked(seen, replace(packed, **other))
    assert "by ALTER TABLE" in str(difference(seen, replace(packed, **{**other, "written": 801})))
    named = replace(kept, members=(*kept.members, f"{NAMED}3 700"))
    assert difference(named, replace(named, **other)) is None
    assert "columns were altered" in str(difference(named, replace(named, columns=packed.columns, **other)))
    assert not replace(named, operations=("insert",)).stays_logged
    root = replace(_ROOT, leaves={"6": replace(_ROOT.leaves["6"], repack=800)})
    leaf = replace(_ROOT.leaves["6"], filenode=103, written=800)
    assert not list(row_questions(root, replace(_ROOT, leaves={"6": leaf})))
    assert list(row_questions(root, replace(_ROOT, leaves={"6": replace(leaf, written=801)})))


def test_types_that_users_made() -> None:
    before = replace(_TABLE, types={"9": ("enum", "a", "b"), "10": ("composite", "x 23 -1")})
    assert (
        difference(
            before, replace(before, types={"9": ("enum", "c", "a", "b"), "10": ("composite", "x 23 -1")})
        )
        is None
    )
    for types in ({"9": ("enum", "a", "c")}, {"10": ("composite", "x 23 -1", "y 23 -1")}):
        assert "ALTER TYPE" in str(difference(before, replace(before, types=types)))


def test_partitions() -> None:
    assert "detached or dropped" in str(difference(_ROOT, replace(_ROOT, leaves={})))
    again = replace(_ROOT, leaves={"6": Leaf("public.p", 101, (800,))})
    assert "attached again" in str(difference(_ROOT, again))
    leaf = Leaf("public.q", 102, (800,))
    (attached,) = row_questions(_ROOT, replace(_ROOT, leaves={**_ROOT.leaves, "7": leaf}))
    assert attached == RowQuestion(leaf, None)
    born = replace(leaf, is_born=True)
    assert not list(row_questions(_ROOT, replace(_ROOT, leaves={**_ROOT.leaves, "7": born})))
    assert [attached.why(found) is None for found in (False, True, None)] == [True, False, False]
    (written,) = row_questions(_ROOT, replace(_ROOT, leaves={"6": Leaf("public.p", 103, (740,))}))
    assert written.xid == 750
    assert [written.why(found) is None for found in (False, True, None)] == [False, True, False]


def test_operations_and_files() -> None:
    assert lacking(OPERATIONS, _TABLE) is None
    assert "no delete. Run ALTER PUBLICATION" in str(
        lacking(OPERATIONS, replace(_TABLE, operations=("insert", "update", "truncate")))
    )
    assert Fingerprint.from_dict(json.loads(json.dumps(asdict(_ROOT)))) == _ROOT
