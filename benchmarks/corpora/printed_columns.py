"""Columns of the types that become text. A column takes its cells from a pool of values in both formats."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.corpora.columns import Cells, ColumnKind, Rng
from pgoutput_fast.encode.values import to_binary, to_text

__all__ = ["PRINTED_TYPES"]

POOL = 4096


def _pooled(
    name: str, value: Callable[[Rng], Any], arrow: pa.DataType | None = None
) -> Callable[[Rng, int], Cells]:
    def make(rng: Rng, n: int) -> Cells:
        pool = [value(rng) for _ in range(min(n, POOL))]
        chosen = pa.array(rng.integers(0, len(pool), n))
        return Cells(
            pa.array(pool, arrow or pa.string()).take(chosen),
            pa.array([to_text(name, each).encode() for each in pool], pa.binary()).take(chosen),
            pa.array([to_binary(name, each) for each in pool], pa.binary()).take(chosen),
        )

    return make


def _below(rng: Rng, bits: int) -> int:
    """A random integer of any length up to `bits` bits."""
    return int(rng.integers(0, 2**63)) >> int(rng.integers(63 - bits, 63))


def _coordinate(rng: Rng) -> str:
    return to_text("float8", float(rng.random() * 360 - 180))


def _point(rng: Rng) -> str:
    return f"({_coordinate(rng)},{_coordinate(rng)})"


def _points(rng: Rng) -> str:
    return ",".join(_point(rng) for _ in range(5))


def _interval(rng: Rng) -> tuple[int, int, int]:
    return int(rng.integers(0, 30)), int(rng.integers(-3, 40)), int(rng.integers(0, 86_400_000_000)) * 1000


def _timetz(rng: Rng) -> str:
    clock = to_text("time", int(rng.integers(0, 86_400_000_000)))
    return clock + ["+00", "+02", "-08", "+05:30"][int(rng.integers(0, 4))]


def _v4(rng: Rng) -> str:
    return str(ipaddress.IPv4Address(int(rng.integers(0, 2**32)))) + ("/24" if rng.random() < 0.2 else "")


def _v6(rng: Rng) -> str:
    return f"2001:db8:{_below(rng, 15) + 1:x}::{_below(rng, 15) + 1:x}:{_below(rng, 15) + 1:x}"


def _word(rng: Rng) -> str:
    return "'" + "".join(chr(97 + int(k)) for k in rng.integers(0, 26, int(rng.integers(3, 9)))) + "'"


def _tsvector(rng: Rng) -> str:
    return " ".join(f"{_word(rng)}:{k + 1}{',30A' if k == 2 else ''}" for k in range(8))


def _tsquery(rng: Rng) -> str:
    return f"{_word(rng)} & ( {_word(rng)} | {_word(rng)} ) & !{_word(rng)}:*"


def _bits(rng: Rng) -> str:
    return "".join(str(k) for k in rng.integers(0, 2, 32))


def _hardware(size: int) -> Callable[[Rng], str]:
    return lambda rng: bytes(rng.integers(0, 256, size, dtype=np.uint8)).hex(":")


def _numbers(separator: str, count: int, bits: int) -> Callable[[Rng], str]:
    return lambda rng: separator.join(str(_below(rng, bits)) for _ in range(count))


def _snapshot(rng: Rng) -> str:
    return f"{_below(rng, 30)}:{_below(rng, 30)}:{_below(rng, 30)},{_below(rng, 30)}"


def _same(oid: int, name: str, value: Callable[[Rng], Any], arrow: pa.DataType | None = None) -> ColumnKind:
    return ColumnKind(oid, _pooled(name, value, arrow))


PRINTED_TYPES: dict[str, ColumnKind] = {
    "xid": _same(28, "xid", lambda rng: _below(rng, 32), pa.int64()),
    "cid": _same(29, "cid", lambda rng: _below(rng, 8), pa.int64()),
    "money": _same(790, "money", lambda rng: Decimal(_below(rng, 36)).scaleb(-2), pa.decimal128(19, 2)),
    "interval": _same(1186, "interval", _interval, pa.month_day_nano_interval()),
    "timetz": _same(1266, "timetz", _timetz),
    '"char"': _same(18, "char", lambda rng: chr(97 + int(rng.integers(0, 26)))),
    "name": _same(19, "name", _word),
    "xml": _same(142, "xml", lambda rng: f"<a b={_word(rng)}>{_word(rng)}</a>"),
    "refcursor": _same(1790, "refcursor", _word),
    "jsonpath": _same(4072, "jsonpath", lambda rng: f"$.{_word(rng)[1:-1]}[*]"),
    "inet v4": _same(869, "inet", _v4),
    "inet v6": _same(869, "inet", _v6),
    "cidr": _same(650, "cidr", lambda rng: f"{int(rng.integers(1, 224))}.{int(rng.integers(0, 256))}.0.0/16"),
    "macaddr": _same(829, "macaddr", _hardware(6)),
    "macaddr8": _same(774, "macaddr8", _hardware(8)),
    "bit(32)": _same(1560, "bit", _bits),
    "varbit": _same(1562, "varbit", _bits),
    "pg_lsn": _same(3220, "pg_lsn", lambda rng: f"{_below(rng, 8):X}/{_below(rng, 32):X}"),
    "tid": _same(27, "tid", lambda rng: f"({_below(rng, 20)},{_below(rng, 8)})"),
    "xid8": _same(5069, "xid8", lambda rng: str(_below(rng, 40))),
    "pg_snapshot": _same(5038, "pg_snapshot", _snapshot),
    "txid_snapshot": _same(2970, "txid_snapshot", lambda rng: f"{_below(rng, 30)}:{_below(rng, 30)}:"),
    "oidvector": _same(30, "oidvector", _numbers(" ", 3, 20)),
    "int2vector": _same(22, "int2vector", _numbers(" ", 3, 10)),
    "regclass": _same(2205, "regclass", lambda rng: str(_below(rng, 20) + 1)),
    "line": _same(628, "line", lambda rng: f"{{{_coordinate(rng)},{_coordinate(rng)},{_coordinate(rng)}}}"),
    "lseg": _same(601, "lseg", lambda rng: f"[{_point(rng)},{_point(rng)}]"),
    "box": _same(603, "box", lambda rng: f"{_point(rng)},{_point(rng)}"),
    "circle": _same(718, "circle", lambda rng: f"<{_point(rng)},{_coordinate(rng).lstrip('-')}>"),
    "path": _same(602, "path", lambda rng: f"[{_points(rng)}]"),
    "polygon": _same(604, "polygon", lambda rng: f"({_points(rng)})"),
    "tsvector": _same(3614, "tsvector", _tsvector),
    "tsquery": _same(3615, "tsquery", _tsquery),
}  # fmt: skip
