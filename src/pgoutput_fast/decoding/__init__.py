"""Messages in, `Decoded` out: the decoder, its state, its inputs and its result."""
