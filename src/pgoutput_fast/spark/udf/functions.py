"""The functions of this package, and the pandas or Arrow UDFs made from them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType, StructType
from pyspark.util import PythonEvalType

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.schema.evolution import pin_schema
from pgoutput_fast.schema.metadata_columns import metadata_fields
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.resolve import decoded_schema
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.payloads import DETAILS, PREFIX, DecodeRow, MessageKind, RelationOid, Xid
from pgoutput_fast.spark.types import Time, check_time, spark_arrow_schema, spark_schema
from pgoutput_fast.spark.udf.arrow_extension import ArrowBacked

__all__ = ["decode_row", "message_kind", "relation_oid", "xid"]

Malformed = Literal["raise", "null"]
# Untyped, because the functions depend on Spark's version.
_functions: Any = F
_HAS_ARROW_UDF = hasattr(F, "arrow_udf")


def message_kind(
    payload: Column | str, *, malformed: Malformed = "raise", arrow: bool | None = None
) -> Column:
    """Returns the kind of a message: `begin`, `insert`, `relation` and so on.

    Boundaries have the names of `transactions`.

    Args:
        payload: a binary column of messages.
        malformed: whether a payload that is not a message raises a DecodeError (`"raise"`) or returns null (`"null"`).
        arrow: whether the function is an Arrow UDF; default: if Spark supports them.

    Raises:
        ValueError: for another `malformed`, and for `arrow=True` on a Spark without Arrow UDFs.
    """
    return _call(MessageKind(_checked(malformed)), StringType(), arrow, payload, None)


def relation_oid(
    payload: Column | str,
    in_stream: Column | str | None = None,
    *,
    malformed: Malformed = "raise",
    arrow: bool | None = None,
) -> Column:
    """Returns the oid of the relation of an Insert, Update, Delete or Relation message; null for all others.

    A Truncate returns null, because it may have several relations.

    Args:
        payload, malformed, arrow: as for `message_kind`.
        in_stream: whether the message was inside a stream block; if not given or null, the message's form decides. A
            message that has both forms is malformed, except that a Relation or Type message then counts as a plain one,
            unless its oid is greater than 500 million.

    Raises:
        ValueError: as for `message_kind`.
    """
    return _call(RelationOid(_checked(malformed)), LongType(), arrow, payload, in_stream)


def xid(
    payload: Column | str,
    in_stream: Column | str | None = None,
    *,
    malformed: Malformed = "raise",
    arrow: bool | None = None,
) -> Column:
    """Returns the xid in a message.

    A boundary has the xid of its transaction, a streamed message that of its (sub)transaction. The result is null for
    messages without an xid: Commit, Stream Stop, Origin, and all messages between Begin and Commit.

    Args:
        payload, in_stream, malformed, arrow: as for `relation_oid`.

    Raises:
        ValueError: as for `message_kind`.
    """
    return _call(Xid(_checked(malformed)), LongType(), arrow, payload, in_stream)


def decode_row(
    relation: Relation,
    *,
    options: Options | None = None,
    catalog: Catalog | None = None,
    details: bool = False,
    malformed: Malformed = "raise",
    arrow: bool | None = None,
    time: Time = "string",
) -> Callable[..., Column]:
    """Returns a function that decodes changes of one relation.

    Its arguments are a payload column, and `in_stream` as in `relation_oid`.

    The function returns struct(change_type, before, after). `change_type` is `insert`, `update` or `delete`. `before`
    is the old row or key, `after` the new row; each is a struct of the relation's columns, null if the message lacks
    it. The result is null for a payload that is not a change of the relation. Columns whose TOASTed value was not sent,
    or that have no Arrow form, are null; `details` shows which.

    A change alone does not show its version, only the version's number of columns. A change with as many columns as
    `relation` counts as one of that version. A change with another number is decoded by the catalog's version with that
    number, and its columns are matched by name: a missing column is null. The whole result is null if no version in the
    catalog has that number of columns, if several have it, or if that version has a column whose values do not all fit.

    Args:
        relation: the version under which the changes were sent, such as `catalog.named("public.orders")[-1]`.
        options: how to decode; default `Options()`. `malformed` replaces `on_error`.
        catalog: other versions of the relation, and a live server's description of types.
        details: adds key_only, unchanged and unrepresentable to the struct, as in the columns of changes.
        malformed, arrow: as for `message_kind`.
        time: as for `changes`.

    Raises:
        TypeError: if `relation` is not a Relation.
        ValueError: for another `malformed` or `time`.
    """
    if not isinstance(relation, Relation):
        raise TypeError(
            f"relation must be a Relation, such as catalog.named(...)[-1], not {type(relation).__name__}"
        )
    _checked(malformed)
    check_time(time)
    types = (catalog if catalog is not None else Catalog()).types
    chosen = dataclasses.replace(
        options if options is not None else Options(),
        metadata_prefix=PREFIX,
        transactions="as_sent",
        on_error="raise" if malformed == "raise" else "quarantine",
    )
    schema = decoded_schema(relation, chosen, types)
    own = pa.schema([field for field in schema if not field.name.startswith(PREFIX)])
    # Without field metadata: Spark expects exactly the declared types.
    images = pa.schema([pa.field(field.name, field.type) for field in spark_arrow_schema(own, time)])
    image = pa.struct(list(images))
    fields = [
        ("change_type", pa.string()),
        ("before", image),
        ("after", image),
        *(DETAILS if details else ()),
    ]
    versions = [*_other_versions(relation, own, catalog, chosen), relation]
    task = DecodeRow(Catalog(versions, types).to_json(), chosen, own, images, details, malformed)
    kind = spark_schema(pa.schema(fields), time)

    def decode(payload: Column | str, in_stream: Column | str | None = None) -> Column:
        return _call(task, kind, arrow, payload, in_stream)

    _let_register(decode, task, kind, arrow)
    return decode


def _other_versions(
    relation: Relation, own: pa.Schema, catalog: Catalog | None, options: Options
) -> list[Relation]:
    """Returns the versions of the relation with a unique number of columns that fit into its columns."""
    if catalog is None:
        return []
    counts = Counter(len(each.columns) for each in catalog.relations if each.oid == relation.oid)
    matching = []
    for each in catalog.relations:
        if (
            each.oid != relation.oid
            or len(each.columns) == len(relation.columns)
            or counts[len(each.columns)] > 1
        ):
            continue
        schema = decoded_schema(each, options, catalog.types)
        with suppress(ValueError):
            pin_schema([(each, schema)], own, metadata_fields(PREFIX), "drop")
            matching.append(each)
    return matching


def _checked(malformed: str) -> str:
    if malformed not in ("raise", "null"):
        raise ValueError(f"malformed must be 'raise' or 'null', not {malformed!r}")
    return malformed


def _call(
    task: Any, kind: DataType, arrow: bool | None, payload: Column | str, in_stream: Column | str | None
) -> Column:
    if arrow and not _HAS_ARROW_UDF:
        raise ValueError("this Spark has no Arrow UDFs: use Spark 4.1 or later")
    as_arrow = _HAS_ARROW_UDF if arrow is None else arrow
    make = _arrow_function if as_arrow else _pandas_function
    arguments = [payload] if in_stream is None else [payload, in_stream]
    for each in arguments:
        # A worker gets values: somebody registered a function that calls this one.
        if not isinstance(each, Column | str):
            raise TypeError(
                f"this function takes a column or its name, not {type(each).__name__}. For SQL, register the function "
                'itself, as in spark.udf.register("message_kind", udf.message_kind), and no other one that calls it'
            )
    column: Column = make(task, kind, len(arguments))(*arguments)
    if isinstance(kind, StructType) and not as_arrow:
        # A row of a pandas DataFrame cannot be null as a whole, so null is set here.
        return F.when(column[kind.names[0]].isNotNull(), column)
    return column


def _arrow_function(task: Any, kind: DataType, count: int) -> Any:
    task = shipped(task)
    if count == 1:

        def of_payload(payload: pa.Array) -> pa.Array:
            return task(payload)

        return _functions.arrow_udf(of_payload, kind)

    def of_both(payload: pa.Array, in_stream: pa.Array) -> pa.Array:
        return task(payload, in_stream)

    return _functions.arrow_udf(of_both, kind)


def _to_pandas(array: pa.Array, kind: DataType) -> Any:
    if not isinstance(kind, StructType):
        return pd.Series(ArrowBacked(array))
    # `flatten` makes all fields of a null struct null, regardless of the values below.
    fields = zip(kind.names, array.flatten(), strict=True)
    return pd.DataFrame({name: ArrowBacked(field) for name, field in fields})


def _pandas_function(task: Any, kind: DataType, count: int) -> Any:
    run = _on_pandas(task, kind)
    returned: Any = pd.DataFrame if isinstance(kind, StructType) else pd.Series
    if count == 1:

        def of_payload(payload):  # type: ignore[no-untyped-def]
            return run(payload)

        of_payload.__annotations__ = {"payload": pd.Series, "return": returned}
        return _functions.pandas_udf(of_payload, kind)

    def of_both(payload, in_stream):  # type: ignore[no-untyped-def]
        return run(payload, in_stream)

    of_both.__annotations__ = {"payload": pd.Series, "in_stream": pd.Series, "return": returned}
    return _functions.pandas_udf(of_both, kind)


def _on_pandas(task: Any, kind: DataType) -> Callable[..., Any]:
    # SQL can name the arguments.
    def run(payload: pd.Series, in_stream: pd.Series | None = None) -> Any:
        payloads = pa.array(payload, pa.large_binary(), from_pandas=True)
        flags = [] if in_stream is None else [pa.array(in_stream, pa.bool_(), from_pandas=True)]
        return _to_pandas(task(payloads, *flags), kind)

    return run


def _on_arrow(task: Any) -> Callable[..., pa.Array]:
    task = shipped(task)

    def run(payload: pa.Array, in_stream: pa.Array | None = None) -> pa.Array:
        return task(payload) if in_stream is None else task(payload, in_stream)

    return run


def _let_register(function: Any, task: Any, kind: DataType, arrow: bool | None = None) -> None:
    """Lets `spark.udf.register` accept a function: it looks for attributes of Spark's own functions.

    Otherwise it would treat the function as one of single values.
    """
    as_arrow = _HAS_ARROW_UDF if arrow is None else arrow
    if as_arrow:
        function.func, function.evalType = _on_arrow(task), PythonEvalType.SQL_SCALAR_ARROW_UDF
    elif isinstance(kind, StructType):
        # The null of a whole row is set outside of the function: see `_call`.
        _refuse_register(
            function,
            "a pandas UDF cannot return null for a whole row, so decode_row can only be registered as an Arrow UDF: "
            "use Spark 4.1 or later, without arrow=False; or use the function in DataFrames",
        )
    else:
        function.func, function.evalType = _on_pandas(task, kind), PythonEvalType.SQL_SCALAR_PANDAS_UDF
    function.returnType, function.deterministic = kind, True
    function.asNondeterministic = None  # Spark only checks that it exists


class _Refusal:
    """Stands in for the kind of a function that cannot be registered.

    Spark compares the kind with those that it knows, and so raises the reason.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __eq__(self, other: object) -> bool:
        raise TypeError(self._reason)

    __hash__ = object.__hash__


def _refuse_register(function: Any, reason: str) -> None:
    function.evalType, function.asNondeterministic = _Refusal(reason), None


_refuse_register(
    decode_row,
    "decode_row(relation) makes the function to register: "
    'spark.udf.register("decode_orders", udf.decode_row(relation))',
)
_let_register(message_kind, MessageKind("raise"), StringType())
_let_register(relation_oid, RelationOid("raise"), LongType())
_let_register(xid, Xid("raise"), LongType())
