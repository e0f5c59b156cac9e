"""Gives each message its transaction and relation version."""
