"""Spark expressions that convert columns of LSNs. They accept the same forms as `pgoutput_fast.parse_lsn`."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType

from pgoutput_fast.protocol.limits import LAST_INT64

__all__ = ["LSN_TYPES", "lsn_column"]

LSN_TYPES = (IntegralType, DecimalType, StringType)
# A long holds LSNs below 2**63. No server's log reaches that position.
_TEXT = r"\A([0-7][0-9A-Fa-f]{7}|[0-9A-Fa-f]{1,7})/[0-9A-Fa-f]{1,8}\z"


def lsn_column(column: Column, name: str, kind: DataType) -> Column:
    """Returns the LSNs as numbers (LONG); null stays null. Any value that is not an LSN fails the query.

    Args:
        column: a column of one of LSN_TYPES.
        name: the column's name in errors.
        kind: the column's type.
    """
    if isinstance(kind, StringType):
        halves = [F.lpad(F.split_part(column, F.lit("/"), F.lit(k)), 8, "0") for k in (1, 2)]
        number = F.conv(F.concat(*halves), 16, 10).cast("long")
        return _checked(column, name, column.rlike(_TEXT), number)
    if isinstance(kind, DecimalType):
        whole = (column >= 0) & (column <= F.lit(LAST_INT64)) & (F.floor(column) == column)
        return _checked(column, name, whole, column.cast("long"))
    return column.cast("long")


def _checked(column: Column, name: str, good: Column, number: Column) -> Column:
    error = F.concat(
        F.lit(f"column {name}: an LSN is text such as 16/B374D848 or a whole number, not "),
        column.cast("string"),
    )
    return F.when(good, number).when(column.isNotNull(), F.raise_error(error).cast("long"))
