"""Conversion of a relation version's messages to rows of a batch."""
