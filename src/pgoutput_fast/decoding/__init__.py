"""The decoder, its inputs, its state and its result."""
