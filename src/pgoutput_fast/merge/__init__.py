"""Applies changes to tables: their net effect, and the files that it rewrites."""
