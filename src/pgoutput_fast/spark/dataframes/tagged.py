"""Checks that a DataFrame has tagged payloads."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType

from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["expect_tagged"]


def expect_tagged(wal: DataFrame, names: Sequence[str] = TAGGED_SCHEMA.names) -> None:
    """Checks that a DataFrame has these columns of tagged payloads.

    Raises:
        ValueError: if it lacks one; the message says how to tag it.
    """
    there = {name.lower() for name in wal.columns}
    missing = [name for name in names if name not in there]
    if not missing:
        return
    binary = [field.name for field in wal.schema if isinstance(field.dataType, BinaryType)]
    payload = "payload" if "payload" in binary or not binary else binary[0]
    more = f", payload={payload!r}" if payload != "payload" else ""
    raise ValueError(
        f"these payloads are not tagged: there is no column {', '.join(missing)}; there is {', '.join(wal.columns)}. "
        f"Tag them with pgspark.tag(df, order_by=...{more}), and pass the result. order_by is the column, or the "
        "columns, that give the order in which the payloads arrived"
    )
