"""Relation versions, built-in and user-defined types, identifiers."""
