"""STOMP over WebSocket: each frame of the node is a message, whatever way its bytes come."""

from __future__ import annotations

import pytest

from disque.web.stomp import Splitter

FRAMES = [
    b"CONNECTED\nversion:1.2\n\n\0",
    b"\n",
    b"MESSAGE\ndestination:/queue/q\ncontent-length:5\n\na\0\n\nb\0",
    b"\n",
    b"RECEIPT\nreceipt-id:content-length:9\n\n\0",
    b"MESSAGE\nmessage-id:1\n\nhello\n\nworld\0",
]


@pytest.mark.parametrize("step", [1, 2, 5, 1_000])
def test_each_frame_and_each_heart_beat_is_a_message(step: int) -> None:
    splitter, data = Splitter(), b"".join(FRAMES)
    messages = [
        message
        for at in range(0, len(data), step)
        for message in splitter.feed(data[at : at + step])
    ]
    assert messages == FRAMES


def test_what_is_not_complete_waits() -> None:
    splitter = Splitter()
    assert splitter.feed(FRAMES[2][:-1]) == []
    assert splitter.feed(FRAMES[2][-1:]) == [FRAMES[2]]
