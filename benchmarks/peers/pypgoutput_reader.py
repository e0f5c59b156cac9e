"""pypgoutput's whole reader without its receiving process: change events with typed values for some types."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pypgoutput.reader import LogicalReplicationReader, ReplicationMessage
from pypgoutput.utils import SourceDBHandler

from benchmarks.peers.worker import given, messages, serve, write_rows


def main() -> None:
    asked = given()
    now, number = datetime.now(UTC), uuid.uuid4()
    received = [
        ReplicationMessage(
            message_id=number, data_start=0, payload=each, send_time=now, data_size=len(each), wal_end=0
        )
        for each in messages(asked["messages"])
    ]
    # The constructor is not called, because it would start a process that reads from a slot. The reader also asks the
    # server for the names of types.
    reader = LogicalReplicationReader.__new__(LogicalReplicationReader)
    reader.table_schemas, reader.key_only_table_models, reader.table_models, reader.pg_types = {}, {}, {}, {}
    reader.source_db_handler = SourceDBHandler(asked["dsn"])
    reader.database = "postgres"

    def decode() -> int:
        return sum(event.op != "T" for event in reader.transform_raw(iter(received)))

    def rows() -> Iterator[tuple[str, list[Any]]]:
        for event in reader.transform_raw(iter(received)):
            if event.op != "T":
                schema = event.table_schema
                yield f"{schema.schema_name}.{schema.table}", list(event.after.values())

    serve(decode, int, lambda path: write_rows(str(Path(path) / "rows"), rows()))


main()
