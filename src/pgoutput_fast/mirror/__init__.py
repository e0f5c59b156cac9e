"""Mirrors the tables of a database in a lake."""
