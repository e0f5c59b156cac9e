"""Options of decoding, and what they leave as it is."""

from __future__ import annotations

import struct
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import Binary

INT4_OID, INT4_ARRAY_OID = 23, 1007

# '[5:6]={1,2}' in both formats.
SHIFTED = "[5:6]={1,2}"
SHIFTED_BINARY = Binary(struct.pack(">iiIiiiiii", 1, 0, INT4_OID, 2, 5, 4, 1, 4, 2))


def stream(type_oid: int, *cells: Any) -> list[bytes]:
    relation = encode.RelationSpec(16401, "public", "t", (encode.ColumnSpec("a", type_oid),))
    changes = [encode.encode_insert(16401, [cell]) for cell in cells]
    relations = encode.encode_relation(relation)
    return [encode.encode_begin(100, 0, 7), relations, *changes, encode.encode_commit(100, 108, 0)]


@pytest.mark.parametrize("cell", [SHIFTED, SHIFTED_BINARY], ids=["text", "binary"])
def test_a_dropped_lower_bound_is_a_reject_and_the_elements_stay(cell: Any) -> None:
    out = pgo.decode(stream(INT4_ARRAY_OID, cell))
    batch = out.table("public.t")
    assert batch.column("a").to_pylist() == [[1, 2]]
    assert batch.column("_unrepresentable").to_pylist() == [None]
    (reject,) = out.rejects.to_pylist()
    assert (reject["column"], reject["raw"]) == ("a", cell.encode() if isinstance(cell, str) else cell.data)
    assert "lower bound" in reject["reason"]


@pytest.mark.parametrize("cell", [SHIFTED, SHIFTED_BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_with_raise_a_dropped_lower_bound_is_an_error(cell: Any, on_error: Any) -> None:
    """Nothing may be lost without an error then."""
    options = pgo.Options(unrepresentable="raise", on_error=on_error)
    with pytest.raises(pgo.DecodeError, match="lower bound") as raised:
        pgo.decode(stream(INT4_ARRAY_OID, "{1}", "{2}", cell), options=options)
    assert (raised.value.seq, raised.value.column) == (4, "a")
