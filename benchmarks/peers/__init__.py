"""Compares this decoder with peers, other programs that decode pgoutput or load the same rows into columns.

The command is `python -m benchmarks.peers`. Each peer is a file in this directory and runs in its own process.
`worker` describes the protocol between a peer and the measuring process. `catalogue` lists the peers, `installations`
installs their packages, `inputs` makes their input, `equality` compares their output, `run` measures them, and `page`
and `chart` write docs/peers.md and docs/peers.svg.
"""
