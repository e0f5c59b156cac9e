"""Benchmarks of the Spark package."""
