"""What runs on the executors. Imports no PySpark; instances are pickled by the driver."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.catalog import Catalog
from pgoutput_fast.decoded import fit
from pgoutput_fast.decoder import decode_tagged
from pgoutput_fast.options import Options
from pgoutput_fast.spark.values import to_spark

__all__ = ["ORIGINS_SCHEMA", "DecodeChanges", "DecodeOrigins", "DecodeTransactions"]

ORIGINS_SCHEMA = pa.schema(
    [("txn", pa.int64()), ("origin", pa.string()), ("origin_lsn", pa.int64()), ("seq", pa.int64())]
)


@dataclass(frozen=True)
class DecodeChanges:
    """Tagged payloads of one relation -> its changes, in the schema that the driver planned.

    Attributes:
        catalog: the relation versions, as JSON.
        options: how to decode.
        schema: what the versions were unified into.
        target: the same as Spark takes it.
    """

    catalog: str
    options: Options
    schema: pa.Schema
    target: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = Catalog.from_json(self.catalog)
        for batch in batches:
            for each in decode_tagged(batch, catalog, self.options).changes:
                yield from to_spark(fit(each.batch, self.schema), self.target).to_batches()


@dataclass(frozen=True)
class DecodeTransactions:
    """Tagged boundary messages -> rows of `transactions`, without what other messages add to them."""

    options: Options
    target: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield decode_tagged(batch, Catalog(), self.options).transactions.cast(self.target)


@dataclass(frozen=True)
class DecodeOrigins:
    """Tagged Origin messages -> (txn, origin, origin_lsn, seq)."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            payloads = batch.column("payload").to_pylist()
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column("txn"),
                    pa.array([payload[9:-1].decode() for payload in payloads], pa.string()),
                    pa.array([struct.unpack_from(">q", payload, 1)[0] for payload in payloads], pa.int64()),
                    batch.column("seq"),
                ],
                schema=ORIGINS_SCHEMA,
            )
