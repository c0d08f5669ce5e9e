"""None yet."""
