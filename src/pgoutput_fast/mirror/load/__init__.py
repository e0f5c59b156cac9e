"""Loads of tables from snapshots of the server."""
