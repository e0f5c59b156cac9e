"""Benchmarks of the mirror."""
