"""Parsers of the protocol: fields, boundaries, relations, frames."""
