"""The command `pgoutput-fast`. It only reads arguments and shows results: the work is done by the layers below."""
