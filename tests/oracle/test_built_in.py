"""Built-in types that print their binary form, on every server: text, binary and the server's own ::text are the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.built_in_cases import CASES, NOT_READ_AGAIN, PRINTED, SEED, Case, has_xml, insert
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.encode.values import array_to_text, to_binary, to_text
from pgoutput_fast.schema.column_types import column_type_of
from support import pg
from support.oracle import comparable, plain_records, same_as_reference

pytestmark = pytest.mark.few_servers


@dataclass(frozen=True)
class Expected:
    """A value by format; whether it, or an element of it, has no Arrow form; whether a lower bound was dropped."""

    value: dict[str, Any]
    unrepresentable: bool = False
    lower_bound_dropped: bool = False


@dataclass
class Sent:
    version: int
    payloads: dict[str, list[pg.Payload]]  # by format
    decoded: dict[str, Decoded]
    said: dict[str, list[Expected]]  # table -> in order of id
    texts: dict[str, list[str | None]]  # table -> what the server prints


@pytest.fixture(scope="module")
def sent(database: pg.Database) -> Sent:
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    version = database.version
    said: dict[str, list[Expected]] = {}
    texts: dict[str, list[str | None]] = {}
    with database.slot() as slot:
        slot.execute('CREATE TABLE "odd ""name" ()')
        for name, case in CASES.items():
            if version < case.since or (name == "xml" and not has_xml(database)):
                continue
            scalars = fill(slot, f"v_{name}", case, [None, *case.values_for(version, name), None])
            said[f"v_{name}"], texts[f"v_{name}"] = scalars
            said[f"a_{name}"], texts[f"a_{name}"] = fill_arrays(slot, f"a_{name}", case, *scalars)
            for table, sql in ((f"v_{name}", case.sql), (f"a_{name}", f"{case.sql}[]")):
                domain_of(slot, table, sql)
                said[f"d{table}"], texts[f"d{table}"] = said[table], texts[table]
        payloads = {"text": slot.peek()}
        if version >= pg.FIRST_BINARY_VERSION:
            payloads["binary"] = slot.peek({"binary": "true"})
    decoded = {
        kind: pgo.decode([data for _, data in those], lsn=[lsn for lsn, _ in those])
        for kind, those in payloads.items()
    }
    return Sent(version, payloads, decoded, said, texts)


def fill(
    slot: pg.Slot, table: str, case: Case, values: list[str | None]
) -> tuple[list[Expected], list[str | None]]:
    insert(slot, table, case.sql, values)
    read = case.read.format("v")
    read_binary = (case.read_binary or case.read).format("v")
    expected, texts = [], []
    for in_text, in_binary, text in slot.execute(
        f"SELECT {read}, {read_binary}, {PRINTED.format('v')} FROM {table} ORDER BY id"
    ):
        there = {
            "text": None if text is None else case.parse(in_text),
            "binary": None if text is None else case.parse(in_binary),
        }
        expected.append(Expected(there, text is not None and there["text"] is None))
        texts.append(text)
    return expected, texts


def domain_of(slot: pg.Slot, table: str, sql: str) -> None:
    """The same values in a domain, which shows itself under its base type's name."""
    slot.execute(
        f"CREATE DOMAIN t_{table} AS {sql}",
        f"CREATE TABLE d{table} (id int PRIMARY KEY, v t_{table})",
        f"INSERT INTO d{table} SELECT * FROM {table} ORDER BY id",
    )


def fill_arrays(
    slot: pg.Slot, table: str, case: Case, scalars: list[Expected], texts: list[str | None]
) -> tuple[list[Expected], list[str | None]]:
    """Arrays of the values: null, empty, all at once, each alone, shifted, and of two dimensions."""
    delimiter = ";" if case.sql == "box" else ","
    rows: list[tuple[str | None, Expected]] = [(None, Expected({"text": None, "binary": None}))]

    def add(numbers: list[int], lower: int = 1) -> None:
        literal = array_to_text([texts[n] for n in numbers], lower, delimiter)
        values = {kind: [scalars[n].value[kind] for n in numbers] for kind in ("text", "binary")}
        bad = any(scalars[n].unrepresentable for n in numbers)
        rows.append((literal, Expected(values, bad, lower != 1 and bool(numbers) and not bad)))

    short = [n for n, text in enumerate(texts) if len(text or "") < 300 and text not in NOT_READ_AGAIN]
    add([])
    for count in (7, 3, 1):
        for start in range(0, len(short), count):
            add(short[start : start + count])
    for lower in (0, -3, 2):
        add(short[lower : lower + 3], lower)
    both = [f"{{{array_to_text([texts[short[1]]], 1, delimiter)[1:-1]}}}" for _ in range(2)]
    rows.append(
        ("{" + delimiter.join(both) + "}", Expected({"text": None, "binary": None}, unrepresentable=True))
    )
    insert(slot, table, f"{case.sql}[]", [literal for literal, _ in rows])
    printed = [text for (text,) in slot.execute(f"SELECT v::text FROM {table} ORDER BY id")]
    return [expected for _, expected in rows], printed


TABLES = [f"{prefix}_{name}" for name, prefix in itertools.product(CASES, ("v", "a", "dv", "da"))]


def case_of(table: str) -> Case:
    return CASES[table.partition("_")[2]]


def is_array(table: str) -> bool:
    return table.partition("_")[0].endswith("a")


@pytest.mark.parametrize("table", TABLES)
def test_value_is_what_the_server_says_it_is(sent: Sent, table: str) -> None:
    """Values, names of the unrepresentable and rejects."""
    case = case_of(table)
    if table not in sent.said:
        pytest.skip(f"this server has no {case.sql}")
    assert set(sent.decoded) == ({"text", "binary"} if sent.version >= pg.FIRST_BINARY_VERSION else {"text"})
    for format_, out in sent.decoded.items():
        decoded = out.table(f"public.{table}").sort_by("id")
        assert decoded.schema.field("v").type == (pa.list_(case.arrow) if is_array(table) else case.arrow)
        assert b"pg.unknown" not in decoded.schema.field("v").metadata
        rows = plain_records(decoded)
        said = sent.said[table]
        assert [row["v"] for row in rows] == comparable([each.value[format_] for each in said]), format_
        flagged = [row["_unrepresentable"] for row in rows]
        assert flagged == [["v"] if each.unrepresentable else None for each in said], format_
        rejects = [row for row in out.rejects.to_pylist() if row["relation"] == f"public.{table}"]
        assert [row["seq"] for row in rejects] == [
            row["_seq"]
            for row, each in zip(rows, said, strict=True)
            if each.unrepresentable or each.lower_bound_dropped
        ]
        if format_ == "text":
            text_of = {row["_seq"]: text for row, text in zip(rows, sent.texts[table], strict=True)}
            assert all(row["raw"].decode() == text_of[row["seq"]] for row in rejects)


def test_text_and_binary_give_the_same_tables(sent: Sent) -> None:
    """All but reg*, which are names in one and oids in the other."""
    if "binary" not in sent.decoded:
        pytest.skip("binary values exist since 14")
    compared = 0
    for a, b in zip(sent.decoded["text"].changes, sent.decoded["binary"].changes, strict=True):
        assert a.relation == b.relation
        assert a.batch.schema.equals(b.batch.schema, check_metadata=True)
        if case_of(a.relation.name).read_binary is None:
            assert plain_records(a.batch) == plain_records(b.batch), a.relation.qualified_name
            compared += 1
    assert compared > 120
    columns = ("seq", "lsn", "relation", "column", "change_type", "type_oid", "reason")
    assert sent.decoded["text"].rejects.select(columns).equals(sent.decoded["binary"].rejects.select(columns))
    cells = {data[8:9] for _, data in sent.payloads["binary"] if data[:1] == b"I"}
    assert cells == {b"b"}  # else text would have been compared with text


@pytest.mark.newest_server
def test_fast_and_reference_decoder_agree_on_every_value(sent: Sent) -> None:
    for payloads in sent.payloads.values():
        same_as_reference(payloads)


def test_encoding_is_the_inverse_of_decoding(sent: Sent) -> None:
    """What the values that were decoded are encoded to is what the server sent."""
    encoded = 0
    for format_, out in sent.decoded.items():
        payloads = dict(enumerate(data for _, data in sent.payloads[format_]))
        for each in out.changes:
            column = each.batch.schema.field("v")
            name = column.metadata[b"pg.type"].decode()
            if is_array(each.relation.name) or (format_ == "text" and name.startswith("reg")):
                continue
            for seq, value in zip(*(each.batch.column(of).to_pylist() for of in ("_seq", "v")), strict=True):
                if value is None:
                    continue
                raw = to_binary(name, value) if format_ == "binary" else to_text(name, value).encode()
                encoded += 1
                # The text of a tsquery does not tell a | (b | c) from (a | b) | c; servers since 19 print a pg_lsn with
                # zeros that a value does not have.
                if name in ("tsquery", "pg_lsn"):
                    kind = column_type_of(pgo.Column("v", OID_OF_NAME[name], -1, False), pgo.Options())
                    assert convert(kind, [raw], format_ == "binary")[0].to_pylist() == [value]
                    continue
                cell = payloads[seq][read_cell(payloads[seq], 8) :]
                assert cell == (b"b" if format_ == "binary" else b"t") + len(raw).to_bytes(4, "big") + raw
    assert encoded > 500


def read_cell(payload: bytes, at: int) -> int:
    """Where the cell behind the one at `at` begins."""
    return at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")


def test_a_char_beyond_ascii_is_the_same_on_each_server(database: pg.Database) -> None:
    """Servers before 15 print the byte itself, which is no UTF-8."""
    with database.slot() as slot:
        slot.execute(
            'CREATE TABLE beyond_ascii (id int PRIMARY KEY, v "char", a "char"[])',
            """INSERT INTO beyond_ascii VALUES (1, 'é', ARRAY['é'::"char", 'a', NULL]), (2, 'a', NULL)""",
        )
        sent = {"text": slot.peek()}
        if database.version >= pg.FIRST_BINARY_VERSION:
            sent["binary"] = slot.peek({"binary": "true"})
    for payloads in sent.values():
        out = pgo.decode([data for _, data in payloads])
        rows = out.table("public.beyond_ascii").sort_by("id")
        assert rows["v"].to_pylist() == ["\\303", "a"]
        assert rows["a"].to_pylist() == [["\\303", "a", None], None]
        assert out.rejects.num_rows == 0
