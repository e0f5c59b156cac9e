"""Functions on columns of single, untagged payloads: inspect them without a decoding pipeline.

    raw.groupBy(udf.message_kind("payload")).count()
    raw.select(udf.decode_row(orders)("payload").alias("row")).select("row.change_type", "row.after.*")

The functions process each payload separately. Only its neighbours show for certain whether a payload was inside a
stream block. So the functions use the payload's own form, or the column `in_stream`.

On Spark 4.1 and later the functions are Arrow UDFs, which receive the payloads without a conversion. On older versions,
and with `arrow=False`, they are pandas UDFs. Null returns null. A payload that is not a pgoutput message raises a
DecodeError, or returns null with `malformed="null"`.
"""

from pgoutput_fast.spark.udf.functions import decode_row, message_kind, relation_oid, xid

__all__ = ["decode_row", "message_kind", "relation_oid", "xid"]
