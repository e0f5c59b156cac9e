"""Benchmarks of each stage, and of whole calls compared with memcpy, a CSV reader and plain Python."""
