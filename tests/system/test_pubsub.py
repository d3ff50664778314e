"""Topics over RESP with redis-py's pubsub, in both versions of the protocol, on two nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.system.nodes import WAIT_S, Cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that know each other."""
    with Cluster(tmp_path_factory.mktemp("pair"), 2, "--cluster-node-timeout", "2000") as cluster:
        yield cluster.join()
        for node in cluster.nodes:
            assert "Traceback" not in node.log(), node.log()


def next_message(pubsub: Any, **options: Any) -> dict[str, Any]:
    """The next message; AssertionError if none comes."""
    message = pubsub.get_message(timeout=WAIT_S, **options)
    assert message is not None
    return dict(message)


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_pubsub(pair: Cluster, protocol: int) -> None:
    near, far = [
        redis.Redis(port=node.port, protocol=protocol, socket_timeout=WAIT_S) for node in pair.nodes
    ]
    channel, other = f"news.{protocol}", f"other.{protocol}"
    with near, far, far.pubsub() as pubsub:
        pubsub.subscribe(channel)
        pubsub.psubscribe(f"news.{protocol}*")
        assert next_message(pubsub)["type"] == "subscribe"
        assert next_message(pubsub) == {
            "type": "psubscribe", "pattern": None, "channel": f"news.{protocol}*".encode(), "data": 2,
        }  # fmt: skip
        wait_until("the other node knows both", lambda: near.publish(channel, "hi") == 2)
        message = next_message(pubsub)
        while message["data"] != b"hi":
            message = next_message(pubsub)
        assert message == {
            "type": "message", "pattern": None, "channel": channel.encode(), "data": b"hi",
        }  # fmt: skip
        assert near.pubsub_numsub(channel, other) == [(channel.encode(), 1), (other.encode(), 0)]
        assert far.publish(f"{channel}.x", "more") == 1
        kinds = []
        while message["data"] != b"more":
            message = next_message(pubsub)
            kinds.append(message["type"])
        assert kinds[-1] == "pmessage"
        pubsub.ping()
        assert next_message(pubsub)["type"] == "pong"
        pubsub.unsubscribe()
        pubsub.punsubscribe()
        assert [next_message(pubsub)["type"] for _ in range(2)] == ["unsubscribe", "punsubscribe"]
        assert not pubsub.subscribed
        wait_until("nobody is left", lambda: near.publish(channel, "hi") == 0)


def test_a_node_that_was_away_counts_again(pair: Cluster) -> None:
    near, far = [redis.Redis(port=node.port, socket_timeout=WAIT_S) for node in pair.nodes]
    with near, far, near.pubsub() as pubsub:
        pubsub.subscribe("back")
        assert next_message(pubsub)["type"] == "subscribe"
        wait_until("it is counted", lambda: far.publish("back", "1") == 1)
        pair.nodes[1].kill()
        pair.nodes[1].start()
        pair.wait_mesh()
        wait_until("it is counted again", lambda: far.publish("back", "2") == 1)
        data = b""
        while data != b"2":
            data = next_message(pubsub)["data"]
