"""Intervals as text in ISO 8601, for readers without an interval type.

In messages, intervals have IntervalStyle postgres: `_core/types/interval.hpp` parses them, and `encode/printed.py`
prints them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["iso_8601"]

# Arrow's layout of an interval.
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])


def iso_8601(intervals: pa.Array) -> pa.Array:
    """Strings such as `P1Y2M-3DT4H5M6.7S`, as PostgreSQL prints them with IntervalStyle iso_8601.

    >>> import pyarrow as pa
    >>> iso_8601(pa.array([(14, -3, 14706700000000), (0, 0, 0)], pa.month_day_nano_interval())).to_pylist()
    ['P1Y2M-3DT4H5M6.7S', 'PT0S']
    """
    months, days, micros = _fields(intervals)
    years = pc.divide(months, 12)
    size = pc.abs(micros)
    seconds = pc.divide(size, 1_000_000)
    minutes = pc.divide(seconds, 60)
    hours = pc.divide(minutes, 60)
    minus = pc.if_else(pc.less(micros, 0), "-", "")
    fraction = pc.utf8_rtrim(pc.utf8_lpad(_text(_rest(size, seconds, 1_000_000)), 6, "0"), "0")
    point = pc.if_else(pc.equal(fraction, ""), "", ".")
    whole = _text(_rest(seconds, minutes, 60))
    second = _joined(minus, whole, point, fraction, "S")
    no_second = pc.equal(_joined(whole, fraction), "0")
    text = _joined(
        "P",
        _part(years, "Y"),
        _part(_rest(months, years, 12), "M"),
        _part(days, "D"),
        pc.if_else(pc.equal(micros, 0), "", "T"),
        _signed(minus, hours, "H"),
        _signed(minus, _rest(minutes, hours, 60), "M"),
        pc.if_else(no_second, "", second),
    )
    text = pc.if_else(pc.equal(text, "P"), "PT0S", text)
    return pc.if_else(intervals.is_null(), pa.scalar(None, pa.string()), text)


def _fields(intervals: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """(months, days, microseconds) of intervals, without nulls. The server has no finer unit than microseconds."""
    rows = np.frombuffer(intervals.buffers()[1], _INTERVAL, intervals.offset + len(intervals))[
        intervals.offset :
    ]
    return tuple(
        pa.array(part) for part in (rows["months"].astype(np.int64), rows["days"], rows["nanos"] // 1000)
    )


def _rest(whole: pa.Array, quotient: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(whole, pc.multiply(quotient, divisor))


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _part(values: pa.Array, unit: str) -> pa.Array:
    return pc.if_else(pc.equal(values, 0), "", _joined(_text(values), unit))


def _signed(minus: pa.Array, values: pa.Array, unit: str) -> pa.Array:
    return pc.if_else(pc.equal(values, 0), "", _joined(minus, _text(values), unit))
