"""The command `pgoutput-fast`. It only reads arguments and shows results: the layers below do the work."""
