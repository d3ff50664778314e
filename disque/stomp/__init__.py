"""STOMP as a pure protocol: frames (bytes in, frames out) and session (frames in, commands of the core out)."""
