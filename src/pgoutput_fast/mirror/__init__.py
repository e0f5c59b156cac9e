"""Tables that follow what commits."""
