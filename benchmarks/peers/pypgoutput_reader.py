"""pypgoutput's whole reader, but for the process that it receives with: change events with values of some types."""

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
    # Its constructor starts a process that reads from a slot. It asks the server what each relation's types are called.
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
