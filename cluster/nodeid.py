"""Node ids: 40 lowercase hexadecimal characters, drawn once, the name of a node for life.

Forgotten is final for an id (rule M16), so a machine that comes back after a FORGET draws a new one.
"""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)

NODE_ID_CHARS = 40
_HEX = frozenset("0123456789abcdef")


def is_node_id(text: str) -> bool:
    """True for 40 lowercase hexadecimal characters."""
    return len(text) == NODE_ID_CHARS and _HEX.issuperset(text)


def node_id_from_bytes(raw: bytes) -> NodeId:
    """The id that 20 random bytes spell; raises ValueError for another length."""
    if len(raw) != NODE_ID_CHARS // 2:
        raise ValueError(f"a node id takes {NODE_ID_CHARS // 2} random bytes, got {len(raw)}")
    return NodeId(raw.hex())
