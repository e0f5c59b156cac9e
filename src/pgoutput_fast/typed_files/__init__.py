"""Typed Parquet files of what committed, a directory for each table."""
