"""`python -m benchmarks.peers`: see run.py."""

from benchmarks.peers.run import main

main()
