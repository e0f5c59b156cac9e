"""Benchmarks of each stage, for pytest-benchmark."""
