"""Tags untagged payloads in parallel."""
