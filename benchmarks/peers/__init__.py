"""What else decodes pgoutput, or brings the same rows to columns, measured beside it: `python -m benchmarks.peers`.

Each peer is a file here that runs in a process of its own (`worker` says how it is spoken to). `catalogue` lists them,
`rooms` installs what they need, `inputs` makes what they read, `equality` compares what they make, `run` measures,
`page` and `chart` write docs/peers.md and docs/peers.svg.
"""
