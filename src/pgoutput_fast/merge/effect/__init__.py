"""The net effect of committed changes on a table."""
