"""Arrow data and documents that nobody looked at: each way in says what is wrong, or takes what is odd and sound."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from support import foreign_cases
from support.paths import ROOT, SUPPORT

DAMAGED = [name for name in foreign_cases.CASES if not name.startswith("sound_")]
SOUND = [name for name in foreign_cases.CASES if name.startswith("sound_")]
WILD = r"payload \d+: the Arrow array's offsets are damaged"
SHORT = r"the Arrow array is damaged: "
# What a case says; SHORT of the column that its name tells where it is not here.
SAYS = {
    "decode_wild_offset": ("ValueError", r"payload 19: the Arrow array's offsets"),
    "decode_backward_offset": ("ValueError", r"payload 19: the Arrow array's offsets"),
    "decode_committed_wild_offset": ("ValueError", WILD),
    "decode_chunk_with_wild_offset": ("ValueError", WILD),
    "decode_view_of_another_buffer": ("ValueError", r"payloads: .*View at slot 1"),
    "decode_short_lsn": ("ValueError", r"lsn: " + SHORT),
    "decode_wild_lsn_text": ("ValueError", r"lsn: " + SHORT),
    "stream_short_lsn": ("ValueError", r"lsn: " + SHORT),
    "decode_seq_without_values": ("ValueError", r"seq: " + SHORT),
    "unframe_wild_offset": ("ValueError", WILD),
    "tagged_short_seq": ("ValueError", r"column seq of tagged payloads: " + SHORT),
    "tagged_lsn_without_values": ("ValueError", r"column lsn of tagged payloads: " + SHORT),
    "tagged_short_validity": ("ValueError", r"column txn of tagged payloads: " + SHORT),
    "tagged_short_kind": ("ValueError", r"column kind of tagged payloads: " + SHORT),
    "tagged_short_in_stream": ("ValueError", r"column in_stream of tagged payloads: " + SHORT),
    "tagged_wild_payload": ("ValueError", WILD),
    "tagged_wild_large_payload": ("ValueError", r"column payload of tagged payloads: .*slot 20"),
    "tagged_table_with_wild_payload": ("ValueError", r"column payload of tagged payloads: .*slot 20"),
    "tagged_committed_wild_outcomes": ("ValueError", r"column outcome of outcomes: " + SHORT),
    "tagged_committed_kinds_that_are_null": ("ValueError", "column kind of tagged payloads cannot be null"),
    "c_interface_of_negative_length": ("ValueError", r"lsn: .*its length is negative"),
    "c_interface_of_negative_offset": ("ValueError", r"lsn: .*it begins at -"),
    "c_interface_of_nulls_without_validity": ("TypeError", "lsn must be integers"),
    "state_with_wild_rows": ("ValueError", r"not a stream state: its waiting changes are damaged .*payload"),
    "spill_file_with_wild_rows": ("SpillError", r"cannot be read .*column payload of batch 0"),
}


@functools.cache
def said() -> dict[str, list[str]]:
    """What each case led to; those behind one that kills the process are not there."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "foreign_cases.py")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line[0]: line[1:] for line in lines}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_arrow_data_is_an_error_that_says_where(case: str) -> None:
    kind, what = SAYS.get(case, ("ValueError", SHORT))
    result = said()[case]
    assert result, "it killed the process"
    assert result[0] == kind, result
    assert re.search(what, result[1]), result


@pytest.mark.parametrize("case", SOUND)
def test_what_is_odd_and_sound_is_decoded(case: str) -> None:
    assert said()[case] == ["gave", "True"]


def test_random_damages() -> None:
    """A part of `make fuzz`, with a seed of its own each time, which it says where something is wrong."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "fuzz" / "foreign.py"), "--cases", "400"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- documents -----------------------------------------------------------------------------------------------------


def held_document() -> dict[str, Any]:
    decoder = pgo.Decoder(foreign_cases.COMMITTED)
    decoder.decode(foreign_cases.OPEN)
    document: dict[str, Any] = json.loads(decoder.state.to_json())
    document["held"]["due"] = [[5, 9, 100, 0, False]]
    document["held"]["waiting"][0]["rolled_back"] = [[8, 3]]
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["held", "rows"], "!!"), (["held", "rows"], ""), (["held", "rows"], "AAAA"), (["held", "rows"], 5),
        (["held", "due", 0, 0], 1 << 64), (["held", "due", 0, 0], -1), (["held", "due", 0, 1], 1.5),
        (["held", "due", 0, 3], 1 << 63), (["held", "waiting", 0, "txn"], -1), (["held", "waiting", 0, "txn"], "0"),
        (["held", "waiting", 0, "rolled_back", 0, 0], 1 << 32), (["held", "waiting", 0, "rolled_back", 0, 1], None),
        (["state"], {"next_seq": None}), (["state", "next_seq"], -1), (["state", "next_seq"], (1 << 63) - 1),
        (["state", "streamed", 0, "txn"], -2), (["state", "context"], "plain"),
        (["catalog", "relations", 0, "columns", 0, 1], -1), (["catalog", "relations", 0, "columns", 0, 2], 1 << 31),
        (["catalog", "relations", 0, "columns", 1, 0], "id"), (["catalog", "relations", 0, "version"], str(1 << 64)),
        (["catalog", "relations", 0, "name"], 7), (["catalog", "relations", 0, "columns", 0, 4], []),
    ],
    ids=str,
)  # fmt: skip
def test_edited_states_are_value_errors(path: list[str | int], value: object) -> None:
    document = part = held_document()
    for step in path[:-1]:
        part = part[step]  # type: ignore[index]
    part[path[-1]] = value  # type: ignore[index]
    with pytest.raises(ValueError, match="not a"):
        pgo.Decoder(foreign_cases.COMMITTED, pgo.StreamState.from_json(json.dumps(document)))


def test_a_transaction_waits_once() -> None:
    document = held_document()
    document["held"]["waiting"] *= 2
    with pytest.raises(ValueError, match="waits twice"):
        pgo.StreamState.from_json(json.dumps(document))


@pytest.mark.parametrize("read", [pgo.StreamState.from_json, pgo.Catalog.from_json])
def test_documents_that_are_nested_deeply_are_value_errors(read: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        read('{"format": 1, "relations": ' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize("shape", ["cycle", "tree", "chain"])
def test_composites_without_an_end_stay_unknown(shape: str) -> None:
    """A type that holds itself, one of 2^60 parts, one of 10,000 levels: no server has them, a document may."""
    oids = range(20_000, 20_060) if shape == "tree" else range(20_000, 30_000)
    below = {
        "cycle": lambda oid: [20_000],
        "tree": lambda oid: [oid + 1] * 2,
        "chain": lambda oid: [oid + 1],
    }[shape]
    types = [
        {"oid": oid, "namespace": "public", "name": f"t{oid}", "kind": "composite",
         "fields": [[f"f{k}", of, -1] for k, of in enumerate(below(oid))]}
        for oid in oids
    ]  # fmt: skip
    relation = pgo.Relation(16384, 7, "public", "t", "d", (pgo.Column("c", 20_000),))
    document = {"format": 1, "relations": [relation.to_dict()], "types": types}
    catalog = pgo.Catalog.from_json(json.dumps(document))
    decoded = pgo.decode_tagged(pgo.tag([])[0], catalog)
    assert decoded.changes == []
    body = relation.wire_body()
    out = pgo.Decoder(catalog=catalog).decode(
        [foreign_cases.WAL[0], b"R" + body, b"I" + (16384).to_bytes(4, "big") + b"N\0\1n"]
    )
    assert out.changes[0].batch.schema.field("c").type == pa.string()
