"""Celery and Kombu over a cluster.

    import disque.kombu_transport

    disque.kombu_transport.register()
    app = Celery(broker="disque://:password@a:7711;disque://b:7711")

Every node that is named, and every other that they know of, will do. `broker_transport_options` may hold, in seconds
where it is time: `visibility_timeout` (60), `message_ttl` (a year), `publish_timeout`, `connect_timeout`,
`reply_timeout`, `failover_timeout`; `replicate`, `max_deliveries`, `dead_letters`, `queue_order_strategy`,
`discover`. Under TLS it is `disques://`, or `broker_use_ssl` with `ca_certs`, `certfile`, `keyfile`, `cert_reqs`.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from disque.kombu_transport.channel import Channel
from disque.kombu_transport.transport import Transport

__all__ = ["Channel", "Transport", "register"]


def register() -> None:
    """Let Kombu know `disque://` and `disques://`; may be called any number of times."""
    for scheme in ("disque", "disques"):
        TRANSPORT_ALIASES[scheme] = "disque.kombu_transport:Transport"
