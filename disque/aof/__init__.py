"""The log: what a node must not forget, in segments of checksummed records."""
