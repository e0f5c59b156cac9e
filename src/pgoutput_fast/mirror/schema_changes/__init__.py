"""Detects altered tables and publications."""
