"""`Options(columns=...)`: the chosen columns are what they are without it, and the others are not looked into."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support.strategies import MODES, streams
from support.streams import ENRICHED, Stream

T = RelationSpec(
    16384,
    "public",
    "t",
    (ColumnSpec("id", 23, key=True), ColumnSpec("doc", 25), ColumnSpec("on", 1082), ColumnSpec("tags", 1009)),
)
U = RelationSpec(16385, "public", "u", (ColumnSpec("id", 23),))


def _wal(*changes: list[Any]) -> list[bytes]:
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    for change in changes:
        wal += writer.change(T, "insert", new=change)
    wal += writer.change(U, "insert", new=["1"])
    return wal + writer.commit(100, 108, 0)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams(), MODES, st.data())
def test_chosen_columns_are_what_they_are_without_the_choice(
    stream: Stream, mode: Any, data: st.DataObject
) -> None:
    whole = pgo.Decoder(pgo.Options(transactions=mode, on_error="quarantine"), catalog=ENRICHED)
    expected = whole.decode(stream.payloads, lsn=stream.lsns)
    names = sorted({(r.qualified_name, column.name) for r in whole.catalog.relations for column in r.columns})
    kept = data.draw(st.sets(st.sampled_from(names))) if names else set()
    tables = {table for table, _ in names if data.draw(st.booleans())}
    columns = {table: [name for its, name in kept if its == table] for table in tables}
    options = pgo.Options(transactions=mode, on_error="quarantine", columns=columns)
    got = pgo.Decoder(options, catalog=ENRICHED).decode(stream.payloads, lsn=stream.lsns)

    def is_kept(table: str, column: str) -> bool:
        return table not in columns or column in columns[table]

    assert len(got.changes) == len(expected.changes)
    for a, b in zip(got.changes, expected.changes, strict=True):
        table, own = b.relation.qualified_name, {column.name for column in b.relation.columns}
        fields = [name for name in b.batch.schema.names if name not in own or is_kept(table, name)]
        assert a.batch.schema.equals(b.batch.schema.empty_table().select(fields).schema, check_metadata=True)
        a.batch.validate(full=True)
        for name in fields:
            if name in ("_unchanged", "_unrepresentable"):
                lists = [
                    [n for n in each or [] if is_kept(table, n)] or None for each in b.batch[name].to_pylist()
                ]
                assert a.batch[name].to_pylist() == lists
            else:
                assert a.batch[name].equals(b.batch[name]) or str(a.batch[name]) == str(b.batch[name])
    rejects = [
        r for r in expected.rejects.to_pylist() if r["column"] is None or is_kept(r["relation"], r["column"])
    ]
    assert got.rejects.to_pylist() == rejects


def test_others_are_not_looked_into() -> None:
    """Neither converted nor checked: but a row must have as many cells as its relation has columns."""
    wal = _wal(["1", "x", "no date at all", "{unclosed"], ["2", None, "infinity", None])
    with pytest.raises(pgo.DecodeError, match="column 'on'"):
        pgo.decode(wal)
    out = pgo.decode(wal, options=pgo.Options(columns={"public.t": ["doc", "id"]}, unrepresentable="raise"))
    table = out.table("public.t")
    assert table.schema.names[-2:] == ["id", "doc"]
    assert table.column("id").to_pylist() == [1, 2]
    assert out.rejects.num_rows == 0
    assert out.table("public.u").column("id").to_pylist() == [1]
    short = _wal(["1", "x", None, None])
    short[2] = short[2][:-1]
    with pytest.raises(pgo.DecodeError, match="ends too early"):
        pgo.decode(short, options=pgo.Options(columns={16384: []}))


def test_no_columns_at_all_by_oid() -> None:
    wal = _wal(["1", encode.UNCHANGED, None, None])
    for columns in ({16384: []}, {'public."t"': ()}):
        table = pgo.decode(wal, options=pgo.Options(columns=columns)).table("public.t")
        assert table.schema.names[-1] == "_unrepresentable"
        assert table.column("_seq").to_pylist() == [2]
        assert table.column("_unchanged").to_pylist() == [None]


def test_a_column_that_is_left_out_may_bear_a_metadata_name() -> None:
    spec = RelationSpec(1, "public", "t", (ColumnSpec("_seq", 23), ColumnSpec("id", 23)))
    writer = Writer()
    wal = writer.begin(1, 1, 1) + writer.change(spec, "insert", new=["7", "8"]) + writer.commit(1, 2, 1)
    table = pgo.decode(wal, options=pgo.Options(columns={"public.t": ["id"]})).table("public.t")
    assert table.select(["_seq", "id"]).to_pylist() == [{"_seq": 2, "id": 8}]


def test_wrong_choices() -> None:
    for columns, error, message in (
        (["id"], TypeError, "must map tables"),
        ({"public.t": "id"}, TypeError, "list of names"),
        ({"public.t": [1]}, TypeError, "collections of names"),
        ({"a.b.c": ["id"]}, ValueError, r"columns: 'a\.b\.c' is not a qualified name"),
    ):
        with pytest.raises(error, match=message):
            pgo.Options(columns=columns)  # type: ignore[arg-type]


def test_tagged_payloads_and_pickles() -> None:
    import pickle

    wal = _wal(["1", "x", "2024-02-29", "{a}"])
    tagged, state = pgo.tag(wal)
    options = pickle.loads(pickle.dumps(pgo.Options(columns={"public.t": ["on"]})))
    (batch,) = (each.batch for each in pgo.decode_tagged(tagged, state.catalog, options).changes[:1])
    assert batch.schema.field("on").type == pa.date32()
    assert batch.schema.names[-2:] == ["_unrepresentable", "on"]


@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_misspelt_column_is_an_error_once_the_relation_is_known(transactions: Any, on_error: Any) -> None:
    said = r"public\.t has no column 'tag' \(did you mean 'tags'\?\) .*there is 'id', 'doc', 'on', 'tags'$"
    wal = _wal(["1", None, None, None])
    for table in ("public.t", 16384):
        options = pgo.Options(transactions=transactions, on_error=on_error, columns={table: ["id", "tag"]})
        decoder = pgo.Decoder(options)
        decoder.decode(wal[:2])  # Begin and Relation
        before = decoder.state
        with pytest.raises(ValueError, match=said):
            decoder.decode(wal[2:])
        assert decoder.state == before
        with pytest.raises(ValueError, match=said):
            decoder.decode([]).table("public.t")
    tagged, state = pgo.tag(wal)
    with pytest.raises(ValueError, match=said):
        pgo.decode_tagged(tagged, state.catalog, pgo.Options(columns={"public.t": ["tag"]}))
    # Of another relation nobody knows anything.
    assert pgo.decode(wal, options=pgo.Options(columns={"public.v": ["tag"]})).table("public.t").num_rows == 1


def _version(*names: str) -> RelationSpec:
    return RelationSpec(16384, "public", "t", tuple(ColumnSpec(name, 23) for name in names))


def test_a_column_that_only_some_versions_have_is_none() -> None:
    """A stream that had it goes on where it is dropped, in other processes as well; one that never had it does not."""
    writer = Writer()
    options = pgo.Options(columns={"public.t": ["id", "gone"]})
    begin, had = writer.begin(7, 100, 0), writer.change(_version("id", "gone"), "insert", new=["1", "2"])
    first = pgo.Decoder(options)
    assert first.decode(begin + had).table("public.t").column("gone").to_pylist() == [2]
    lacks = writer.change(_version("id"), "insert", new=["3"])
    then = pgo.Decoder(options, pgo.StreamState.from_json(first.state.to_json()))
    for decoder in (first, then):
        table = decoder.decode(lacks).table("public.t")
        assert table.schema.names[11:] == ["id"]
        assert table.column("id").to_pylist() == [3]
    with pytest.raises(ValueError, match=r"no column 'gone' in any version known so far; there is 'id'$"):
        pgo.decode(begin + lacks, options=options)


def test_columns_that_come_and_go_are_looked_for_once() -> None:
    """With many versions that lack a column the check is not quadratic: what was found is kept."""
    writer = Writer()
    wal = writer.begin(7, 100, 0) + writer.change(_version("id", "gone"), "insert", new=["1", "2"])
    for k in range(50):
        wal += writer.change(_version("id", f"c{k}"), "insert", new=["1", "2"])
    looked = 0

    class Counted(pgo.Options):
        def check_columns(self, relation: Any, known: Any, seen: Any) -> None:
            nonlocal looked
            before = len(seen)
            super().check_columns(relation, known, seen)
            looked += len(seen) > before

    assert pgo.decode(wal, options=Counted(columns={"public.t": ["gone"]})).table("public.t").num_rows == 51
    assert looked == 1
