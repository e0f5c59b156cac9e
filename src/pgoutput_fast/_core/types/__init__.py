"""Converters from the text and binary form of each type to Arrow values."""
