"""Loads rows into a Delta table with ADBC: `python -m benchmarks.mirror.adbc_load URI DIRECTORY QUERY`."""

from __future__ import annotations

import sys

import adbc_driver_postgresql.dbapi as adbc
from deltalake import write_deltalake


def main(uri: str, directory: str, query: str) -> None:
    """Reads the rows of a query batch by batch, and writes them."""
    with adbc.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        write_deltalake(directory, cursor.fetch_record_batch())


if __name__ == "__main__":
    main(*sys.argv[1:])
