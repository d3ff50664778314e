"""disque-broker: a multi-master job queue that speaks the Redis protocol."""

__version__ = "0.1.0"
