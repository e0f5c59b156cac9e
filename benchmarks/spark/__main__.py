"""`python -m benchmarks.spark`: see queries.py."""

from benchmarks.spark.queries import main

main()
