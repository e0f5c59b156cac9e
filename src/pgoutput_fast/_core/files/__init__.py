"""Native code for spill files."""
