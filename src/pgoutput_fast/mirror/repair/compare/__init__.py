"""Compares a current table with the server's table, and finds the rows that differ."""
