"""Benchmarks of the Spark face."""
