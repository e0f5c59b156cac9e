"""Readers of COPY data."""
