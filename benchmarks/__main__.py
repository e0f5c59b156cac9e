"""`python -m benchmarks`: see report.py."""

from benchmarks.report import main

main()
