"""The cluster bus: who is there, who is reachable, and carrying opaque payloads between nodes.

This package knows nothing of jobs. `membership` is a pure state machine; `link` and `bus` do its I/O with trio.
"""
