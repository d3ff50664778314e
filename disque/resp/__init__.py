"""The Redis serialization protocol: bytes in, arguments out; values in, bytes out."""
