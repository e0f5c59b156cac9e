"""Ranges, multiranges and points on every server: what the server says is in them is what is decoded."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.range_cases import MULTIRANGES, POINTS, RANGES, fill
from cells.scalar_cases import CASES, SEED, Case
from pgoutput_fast.decoding.result import Decoded
from support import pg
from support.oracle import comparable, enriched, plain_records, same_as_reference

pytestmark = pytest.mark.few_servers


@dataclass
class Sent:
    version: int
    payloads: dict[str, list[pg.Payload]]
    decoded: dict[str, Decoded]
    said: dict[
        str, tuple[list[Any], list[bool]]
    ]  # table -> values in order of id, and whether a bound was lost
    enriched: dict[str, Any]


@pytest.fixture(scope="module")
def sent(database: pg.Database) -> Sent:
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    version = database.version
    said = {}
    with database.slot() as slot:
        slot.execute(
            'CREATE TYPE textrange AS RANGE (subtype = text, collation = "C")',
            "CREATE TYPE floatrange AS RANGE (subtype = float8)",
        )
        for name, case in RANGES.items():
            fill(slot, name, case.values(version, random.Random(f"{SEED} {name}")), version)
            shapes = [("v", name), ("a", f"{name}[]")]
            if version >= 14:
                shapes += [("m", MULTIRANGES[name]), ("ma", f"{MULTIRANGES[name]}[]")]
            for prefix, _ in shapes:
                said[f"{prefix}_{name}"] = ask(slot, prefix, name, case.bounds)
        slot.execute("CREATE TABLE points (id int PRIMARY KEY, v point, a point[])")
        for number, point in enumerate(POINTS):
            slot.execute(f"INSERT INTO points VALUES ({number}, '{point}', ARRAY['{point}', NULL]::point[])")
        slot.execute("INSERT INTO points VALUES (100, NULL, NULL), (101, NULL, '{}')")
        payloads = {"text": slot.peek()}
        if version >= pg.FIRST_BINARY_VERSION:
            payloads["binary"] = slot.peek({"binary": "true"})
        known = enriched(slot)
        said["points"] = points(slot)
    decoded = {
        kind: pgo.Decoder(catalog=known["catalog"]).decode([data for _, data in those])
        for kind, those in payloads.items()
    }
    return Sent(version, payloads, decoded, said, known)


def ask(slot: pg.Slot, prefix: str, name: str, bounds: Case) -> tuple[list[Any], list[bool]]:
    table = f"{prefix}_{name}"
    array, multi = "a" in prefix, "m" in prefix
    one = "v[i]" if array else "v"
    subscripts = ", generate_subscripts(v, 1) AS i" if array else ", (SELECT 0 AS i) AS x"
    ranges = (
        f", unnest({one}) WITH ORDINALITY AS u (r, j)"
        if multi
        else f", LATERAL (SELECT {one} AS r, 0 AS j) AS u"
    )
    inner: dict[tuple[int, int], list[tuple[Any, bool]]] = {}
    for id_, i, null, lower, upper, no_lower, no_upper, lower_inc, upper_inc, empty in slot.execute(
        f"SELECT id, i, r IS NULL, {bounds.read.format('lower(r)')}, {bounds.read.format('upper(r)')}, lower(r) IS NULL,"
        f" upper(r) IS NULL, lower_inc(r), upper_inc(r), isempty(r) FROM {table}{subscripts}{ranges} ORDER BY id, i, j"
    ):
        value, lost = None, False
        if not null:
            value = {
                "lower": None if no_lower else bounds.parse(lower), "upper": None if no_upper else bounds.parse(upper),
                "lower_inc": lower_inc, "upper_inc": upper_inc, "empty": empty,
            }  # fmt: skip
            lost = (value["lower"] is None) != no_lower or (value["upper"] is None) != no_upper
        inner.setdefault((id_, i), []).append((value, lost))
    size = "coalesce(array_length(v, 1), 0)" if array else "1"
    all_nulls: dict[int, set[int]] = {}
    for id_, i in slot.execute(f"SELECT id, i FROM {table}{subscripts} WHERE {one} IS NULL"):
        all_nulls.setdefault(id_, set()).add(i)
    values, losses = [], []
    for id_, null, count in slot.execute(f"SELECT id, v IS NULL, {size} FROM {table} ORDER BY id"):
        nulls = all_nulls.get(id_, set())
        items = []
        lost = False
        for i in range(1, count + 1) if array else [0]:
            found = inner.get((id_, i), [])
            lost = lost or any(loss for _, loss in found)
            items.append(None if i in nulls else [value for value, _ in found] if multi else found[0][0])
        values.append(None if null else items if array else items[0])
        losses.append(lost and not null)
    return values, losses


def points(slot: pg.Slot) -> tuple[list[Any], list[bool]]:
    as_float = CASES["float8"].parse
    rows = slot.execute(
        "SELECT v IS NULL, encode(float8send(v[0]), 'hex'), encode(float8send(v[1]), 'hex') FROM points ORDER BY id"
    )
    values = [None if null else {"x": as_float(x), "y": as_float(y)} for null, x, y in rows]
    return values, [False] * len(values)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("prefix", ["v", "a", "m", "ma"])
def test_range_has_the_bounds_that_the_server_says_it_has(sent: Sent, prefix: str, name: str) -> None:
    if "m" in prefix and sent.version < 14:
        pytest.skip("multiranges exist since 14")
    values, losses = sent.said[f"{prefix}_{name}"]
    assert len(values) > 8
    bound = RANGES[name].bounds.arrow
    flags = [(flag, pa.bool_()) for flag in ("lower_inc", "upper_inc", "empty")]
    arrow: pa.DataType = pa.struct([("lower", bound), ("upper", bound), *flags])
    for _ in prefix.replace("v", ""):
        arrow = pa.list_(arrow)
    for format_, out in sent.decoded.items():
        table = out.table(f"public.{prefix}_{name}").sort_by("id")
        assert table.schema.field("v").type == arrow
        rows = plain_records(table)
        assert [row["v"] for row in rows] == comparable(values), format_
        assert [row["_unrepresentable"] for row in rows] == [["v"] if lost else None for lost in losses]
        rejected = [
            row["seq"] for row in out.rejects.to_pylist() if row["relation"] == f"public.{prefix}_{name}"
        ]
        assert rejected == sorted(row["_seq"] for row, lost in zip(rows, losses, strict=True) if lost)
    if name in ("tsrange", "tstzrange", "daterange"):
        assert any(losses)


def test_point_has_the_coordinates_that_the_server_says_it_has(sent: Sent) -> None:
    values, _ = sent.said["points"]
    for out in sent.decoded.values():
        rows = plain_records(out.table("public.points").sort_by("id"))
        assert [row["v"] for row in rows] == comparable(values)
        arrays = [None if v is None else [v, None] for v in comparable(values)[:-1]]
        assert [row["a"] for row in rows] == [*arrays, []]


def test_text_and_binary_give_the_same_tables(sent: Sent) -> None:
    if "binary" not in sent.decoded:
        pytest.skip("binary values exist since 14")
    text, binary = (sent.decoded[kind] for kind in ("text", "binary"))
    assert len(text.changes) == 4 * len(RANGES) + 1
    for a, b in zip(text.changes, binary.changes, strict=True):
        assert a.batch.schema.equals(b.batch.schema, check_metadata=True)
        assert plain_records(a.batch) == plain_records(b.batch), a.relation.qualified_name
    columns = ("seq", "lsn", "relation", "column", "change_type", "type_oid", "reason")
    assert text.rejects.select(columns).equals(binary.rejects.select(columns))
    assert binary.rejects.num_rows > 10


def test_fast_and_reference_decoder_agree(sent: Sent) -> None:
    for payloads in sent.payloads.values():
        same_as_reference(payloads, **sent.enriched)


def test_what_the_fields_of_a_range_cannot_hold_is_kept_whole(sent: Sent) -> None:
    """A bound at infinity is null as one that is not there is: the reject tells them apart."""
    (reject,) = (
        row
        for row in sent.decoded["text"].rejects.to_pylist()
        if row["raw"] == b"[infinity,infinity]" and row["relation"] == "public.v_tsrange"
    )
    assert reject["column"] == "v"
    assert "infinite" in reject["reason"]
