"""Changes of a slot, decoded as they arrive: `pgoutput_fast.follow`."""
