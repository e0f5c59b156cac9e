"""Applies committed changes to histories and current tables."""
