"""Loads tables into Delta tables with other tools.

    python loaders.py adbc|connectorx|dlt URI DIRECTORY TABLE=QUERY ...

dlt reads whole tables: it ignores the queries. This needs only the packages of the tool, and deltalake.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["main"]


def adbc(uri: str, directory: str, queries: Mapping[str, str]) -> None:
    """Reads the rows of a query batch by batch, and writes them."""
    from adbc_driver_postgresql import dbapi
    from deltalake import write_deltalake

    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        for table, query in queries.items():
            cursor.execute(query)
            write_deltalake(f"{directory}/{table}", cursor.fetch_record_batch())


def connectorx(uri: str, directory: str, queries: Mapping[str, str]) -> None:
    """Reads the rows of a query batch by batch, and writes them."""
    import connectorx as cx
    from deltalake import write_deltalake

    for table, query in queries.items():
        write_deltalake(f"{directory}/{table}", cx.read_sql(uri, query, return_type="arrow_stream"))


def dlt(uri: str, directory: str, queries: Mapping[str, str]) -> None:
    """Runs a pipeline with the backend of Arrow."""
    import dlt as tool
    from dlt.destinations import filesystem
    from dlt.sources.sql_database import sql_database

    target = filesystem(bucket_url=f"file://{directory}")
    pipeline = tool.pipeline(
        "load", destination=target, dataset_name="public", pipelines_dir=f"{directory}/_dlt"
    )
    uri = uri.replace("postgresql:", "postgresql+psycopg2:")
    source = sql_database(
        uri, schema="public", table_names=list(queries), backend="pyarrow", chunk_size=100_000
    )
    pipeline.run(source, table_format="delta", loader_file_format="parquet")


def main(tool: str, uri: str, directory: str, *queries: str) -> None:
    """Loads the tables with a tool."""
    named = dict(each.split("=", 1) for each in queries)
    {"adbc": adbc, "connectorx": connectorx, "dlt": dlt}[tool](uri, directory, named)


if __name__ == "__main__":
    main(*sys.argv[1:])
