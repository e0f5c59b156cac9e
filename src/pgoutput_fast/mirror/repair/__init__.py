"""Repairs a mirror that lost its slot."""
