"""Assigns messages to their transactions and relation versions."""
