"""`pgoutput-fast bench`: how fast this machine decodes, with generated messages."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from pgoutput_fast.cli.arguments import Json
from pgoutput_fast.cli.problems import PROBLEM
from pgoutput_fast.cli.screen import line, objects, size, table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["bench"]

_FORMATS = ("text", "binary")
# Rows of a transaction. It is generated once per format, and then repeated, because Python generates it slowly.
_ROWS = 998
_ROUNDS = 5
# name -> (name of the type, typmod)
_COLUMNS = {
    "id": ("int4", -1),
    "account": ("int8", -1),
    "price": ("numeric", (12 << 16 | 2) + 4),
    "active": ("bool", -1),
    "changed": ("timestamptz", -1),
    "token": ("uuid", -1),
    "city": ("text", -1),
    "note": ("text", -1),
}
_CITIES = ("Lisboa", "Kraków", "Hà Nội", "São Paulo", "Toronto", "Reykjavík")


def bench(
    messages: Annotated[
        int,
        typer.Option(
            metavar="N", min=1_000, max=10_000_000, help="about how many messages to decode at once"
        ),
    ] = 400_000,
    json: Json = False,
) -> None:
    """Measure how fast this machine decodes, compared with memcpy.

    The same rows are decoded from text and from binary. memcpy copies the bytes of their messages once. The table has 8
    columns: int4, int8, numeric(12,2), bool, timestamptz, uuid and two texts. The figures are medians of five rounds,
    in CPU time. A thousand rows are repeated: more varied rows take a little longer.

    Example: pgoutput-fast bench
    """
    import pgoutput_fast as pgo

    found = []
    tables = []
    for format in _FORMATS:
        payloads = _messages(format, messages)
        nbytes = payloads.nbytes - 4 * len(payloads)
        # The first call pays for memory and imports.
        tables.append(pgo.decode(payloads).table("public.bench"))
        decoding = _median(partial(pgo.decode, payloads))
        copying = _median(_copy(payloads))
        rows = tables[-1].num_rows
        found.append(
            {
                "format": format,
                "messages": len(payloads),
                "rows": rows,
                "bytes": nbytes,
                "seconds": decoding,
                "messages_per_second": len(payloads) / decoding,
                "bytes_per_second": nbytes / decoding,
                "cells_per_second": rows * len(_COLUMNS) / decoding,
                "memcpy_bytes_per_second": nbytes / copying,
            }
        )
    _expect_same(*tables)
    objects(found) if json else _show(found)


def _show(found: list[dict[str, Any]]) -> None:
    table(
        ["format", "messages", "bytes", "messages/s", "cells/s", "decoded/s", "memcpy/s", "of memcpy"],
        [
            (
                each["format"],
                f"{each['messages']:,}",
                size(each["bytes"]),
                f"{each['messages_per_second'] / 1e6:.2f} M",
                f"{each['cells_per_second'] / 1e6:.1f} M",
                size(round(each["bytes_per_second"])),
                size(round(each["memcpy_bytes_per_second"])),
                f"{each['bytes_per_second'] / each['memcpy_bytes_per_second']:.1%}",
            )
            for each in found
        ],
        right=["messages", "bytes", "messages/s", "cells/s", "decoded/s", "memcpy/s", "of memcpy"],
    )
    line("text and binary gave the same rows")


def _expect_same(text: pa.Table, binary: pa.Table) -> None:
    """Checks that both formats decode to the same rows: a wrong decoder may be fast."""
    if not text.equals(binary):
        line("text and binary gave different rows: please report this", "bold red", error=True)
        raise typer.Exit(PROBLEM)


def _messages(format: str, count: int) -> pa.Array:
    """Transactions of `_ROWS` inserts. Only the first one describes the table."""
    import pyarrow as pa

    from pgoutput_fast.encode import Writer

    begin, relation, *rest = _transaction(Writer(), format)
    first, later = (pa.array(each, pa.binary()) for each in ([begin, relation, *rest], [begin, *rest]))
    return pa.concat_arrays([first, *[later] * (count // len(later) - 1)])


def _transaction(writer: Any, format: str) -> list[bytes]:
    from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
    from pgoutput_fast.encode import Binary, ColumnSpec, RelationSpec
    from pgoutput_fast.encode.values import to_binary, to_text

    def cell(name: str, value: object) -> Any:
        if value is None:
            return None
        kind = _COLUMNS[name][0]
        return to_text(kind, value) if format == "text" else Binary(to_binary(kind, value))

    columns = tuple(
        ColumnSpec(name, OID_OF_NAME[kind], mod, name == "id") for name, (kind, mod) in _COLUMNS.items()
    )
    relation = RelationSpec(16_401, "public", "bench", columns)
    sent = writer.begin(7, 100, 0)
    for values in _rows():
        cells = [cell(name, value) for name, value in zip(_COLUMNS, values, strict=True)]
        sent += writer.change(relation, "insert", new=cells)
    return [*sent, *writer.commit(100, 108, 0)]


def _rows() -> list[tuple[object, ...]]:
    dice = Random(20_261_120)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        (
            number,
            dice.randrange(10**12),
            Decimal(dice.randrange(10**7)).scaleb(-2),
            dice.random() < 0.5,
            begin + timedelta(microseconds=dice.randrange(10**13)),
            UUID(int=dice.getrandbits(128)),
            dice.choice(_CITIES),
            None if dice.random() < 0.2 else "a note of some words " * dice.randrange(1, 5),
        )
        for number in range(_ROWS)
    ]


def _copy(payloads: pa.Array) -> Callable[[], object]:
    import numpy as np

    source = np.frombuffer(payloads.buffers()[2], np.uint8)
    target = np.empty_like(source)
    target[:] = 1  # the system allocates the memory at the first write
    return lambda: np.copyto(target, source)


def _median(call: Callable[[], object]) -> float:
    """Processor seconds of a call, which do not depend on the load of the machine."""
    seconds = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return max(statistics.median(seconds), 1e-9)
