"""Options that change what columns are made of, and those that go together with a state."""

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer

T = RelationSpec(
    16384,
    "public",
    "t",
    (
        ColumnSpec("id", 23, key=True),
        ColumnSpec("note", 25),
        ColumnSpec("doc", 3802),
        ColumnSpec("tags", 1009),
    ),
)


def _wal(writer: Writer) -> list[bytes]:
    return [
        *writer.begin(7, 100, 0),
        *writer.change(T, "insert", new=["1", "a note that is longer than twelve bytes", "{}", "{a,b}"]),
        *writer.change(T, "insert", new=["2", None, None, None]),
        *writer.commit(100, 108, 0),
    ]


def test_strings_can_be_views() -> None:
    wal = _wal(Writer())
    views = pgo.decode(wal, options=pgo.Options(strings="string_view")).table("public.t")
    assert views.schema.field("note").type == pa.string_view()
    assert views.schema.field("doc").type == pa.string_view()
    assert views.schema.field("tags").type == pa.list_(pa.string())
    assert views.schema.field("_change_type").type == pa.string()
    assert views.schema.field("note").metadata[b"pg.type"] == b"text"
    assert views.to_pylist() == pgo.decode(wal).table("public.t").to_pylist()


def test_a_state_that_holds_changes_back_wants_the_committed_view() -> None:
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    decoder.decode(_wal(Writer())[:3])
    with pytest.raises(ValueError, match="committed"):
        pgo.Decoder(state=decoder.state)
