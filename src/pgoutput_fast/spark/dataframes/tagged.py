"""Checks that a DataFrame has tagged payloads, and attaches the states before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType

from pgoutput_fast.base.arguments import kind_of
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["Ends", "ends_of", "expect_dataframe", "expect_tagged", "state_after", "with_ends"]

# An attribute of a DataFrame. DataFrames derived from it have other rows, so they do not inherit the attribute.
_ENDS = "_pgoutput_fast_ends"


@dataclass(frozen=True)
class Ends:
    """The stream at both ends of a DataFrame of tagged payloads.

    Attributes:
        before: the state before the first payload.
        after: the state after the last payload.
        first, last: the order columns of the first and the last payload; empty without payloads.
    """

    before: StreamState
    after: StreamState
    first: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()


def with_ends(tagged: DataFrame, ends: Ends) -> DataFrame:
    """Attaches its ends to the DataFrame, and returns it."""
    setattr(tagged, _ENDS, ends)
    return tagged


def ends_of(tagged: DataFrame) -> Ends | None:
    """Returns the ends of a DataFrame that `tag` returned; None for any other."""
    found = vars(tagged).get(_ENDS)
    return found if isinstance(found, Ends) else None


def state_after(tagged: DataFrame) -> StreamState:
    """Returns the state of the stream after tagged payloads. The next call of `tag` continues with it.

    `tag` has computed it, so this runs no Spark job. Use or write the rows before you store the state, because errors
    in changes appear only then.

    `state_after(tagged).to_json()` is text that you can store beside the rows; `tag(..., state=text)` accepts it. Its
    size grows with the number of relations and open transactions: some hundred bytes per relation.

    Args:
        tagged: the DataFrame returned by `tag`, not one derived from it.

    Raises:
        ValueError: for any other DataFrame.

    Example:
        first = pgspark.tag(monday, order_by="offset")
        first.write.parquet("tagged/monday")
        Path("state.json").write_text(pgspark.state_after(first).to_json())

        then = pgspark.tag(tuesday, order_by="offset", state=Path("state.json").read_text())
    """
    ends = ends_of(tagged)
    if ends is None:
        raise ValueError(
            "the state after this DataFrame is not known: pass the DataFrame that pgspark.tag(...) returned itself, "
            "before any where, select or read"
        )
    return ends.after


def expect_dataframe(wal: object) -> None:
    """Checks that an argument is a DataFrame, of either kind of session.

    Raises:
        TypeError: if it is not; the message says how to read segments.
    """
    if not isinstance(wal, DataFrame):
        raise TypeError(
            f"this takes a DataFrame of payloads, not {kind_of(wal)}: read segments with spark.read.parquet(...), or "
            'their changes with spark.read.format("pgoutput").load(...)'
        )


def expect_tagged(wal: DataFrame, names: Sequence[str] = TAGGED_SCHEMA.names) -> None:
    """Checks that a DataFrame has these columns of tagged payloads.

    Raises:
        TypeError: if it is not a DataFrame, or if its payloads are not bytes.
        ValueError: if it lacks one; the message says how to tag it.
    """
    expect_dataframe(wal)
    there = {name.lower() for name in wal.columns}
    missing = [name for name in names if name not in there]
    if not missing:
        kind = next((field.dataType for field in wal.schema if field.name.lower() == "payload"), BinaryType())
        if not isinstance(kind, BinaryType):
            raise TypeError(
                f"column payload must be binary, not {kind.simpleString()}: payloads are bytes, so read them without "
                "spark.sql.parquet.binaryAsString"
            )
        return
    binary = [field.name for field in wal.schema if isinstance(field.dataType, BinaryType)]
    payload = "payload" if "payload" in binary or not binary else binary[0]
    more = f", payload={payload!r}" if payload != "payload" else ""
    raise ValueError(
        f"these payloads are not tagged: there is no column {', '.join(missing)}; there is {', '.join(wal.columns)}. "
        f"Tag them with pgspark.tag(df, order_by=...{more}), and pass the result. order_by is the column, or the "
        "columns, that give the order in which the payloads arrived"
    )
