"""What spill files need of the native core."""
