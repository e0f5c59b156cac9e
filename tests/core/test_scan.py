"""Stage 1, scan: headers, and whether a stream block is open."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast._core.tagging.scan import scan

BEGIN = encode.encode_begin(100, 0, 7)
INSERT = encode.encode_insert(16384, ["1"])
STREAMED = encode.encode_insert(16384, ["1"], xid=9)
START, STOP = encode.encode_stream_start(8, True), encode.encode_stream_stop()


def test_kinds_relations_and_prefixes() -> None:
    found = scan(
        pa.array([BEGIN, INSERT, START, STREAMED, encode.encode_origin(1, "o"), STOP, INSERT], pa.binary())
    )
    assert found["kind"] == b"BISIOEI"
    assert found["in_stream"] == [False, False, False, True, True, True, False]
    assert found["relation"] == [0, 16384, 0, 16384, 0, 0, 16384]
    assert found["subxid"] == [0, 0, 0, 9, 0, 0, 0]
    assert not any(found["malformed"])


def test_a_window_can_begin_inside_a_block() -> None:
    found = scan(pa.array([STREAMED, STOP, INSERT], pa.binary()), True)
    assert found["relation"] == [16384, 0, 16384]


@pytest.mark.parametrize("large", [False, True])
def test_slices_of_arrays(large: bool) -> None:
    array = pa.array([b"x" * 5, BEGIN, INSERT, STOP, b"y"], pa.large_binary() if large else pa.binary())[1:4]
    assert scan(array)["kind"] == b"BIE"


def test_short_and_empty_messages() -> None:
    found = scan(pa.array([b"", b"I", b"I\0\0\0\1", b"Q", START, b"I\0\0\0\1\0\0\0\1", b"R\0"], pa.binary()))
    assert found["malformed"] == [True, True, True, False, False, True, True]


def test_empty_inputs() -> None:
    assert scan(pa.array([], pa.binary()))["kind"] == b""
    assert scan(pa.array([b"", b""], pa.binary()))["malformed"] == [True, True]


def offsets_array(offsets: list[int], data: bytes, large: bool = False) -> pa.Array:
    kind, integer = (pa.large_binary(), pa.int64()) if large else (pa.binary(), pa.int32())
    buffers = [None, pa.array(offsets, integer).buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("offsets", [[0, 5, 3, 8], [0, 100, 5, 8], [0, 4, 2**31 - 1, 8], [0, -1, 4, 8]])
def test_damaged_offsets_are_an_error(offsets: list[int], large: bool) -> None:
    array = offsets_array(offsets, b"B" * 8, large)
    with pytest.raises(ValueError, match=r"(?i)offset|buffer"):
        scan(array)
    with pytest.raises(ValueError, match=r"(?i)offset|buffer"):
        pgo.decode(array)
