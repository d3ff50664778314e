"""Observer: what each node says about itself, every few seconds and whenever the drain wants to know.

A snapshot is an `observe` pair of the history, one a node; nodes are asked side by side, and one that doesn't answer is
a completion of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import attrs
import trio

from jepsen.history import FAIL, INFO, INVOKE, OBSERVER, OK
from jepsen.hosts.base import Hosts
from jepsen.recorder import Recorder
from jepsen.resp import Client, ReplyError, Trouble

EVERY_S: Final = 2.0
ANSWER_S: Final = 1.5
IDS_MAX: Final = 2_500
UNACKED: Final = ("wait-repl", "active", "queued")


@attrs.define(eq=False)
class Observer:
    """Asks all nodes; `latest` is the last snapshot of each that answered in the last round."""

    hosts: Hosts
    recorder: Recorder
    latest: dict[str, dict[str, Any]] = attrs.Factory(dict)
    _clients: dict[str, Client] = attrs.Factory(dict)
    _busy: trio.Lock = attrs.Factory(trio.Lock)

    async def run(self) -> None:
        """A round every EVERY_S, until cancelled."""
        while True:
            await self.round("main")
            await trio.sleep(EVERY_S)

    async def round(
        self, phase: str, nodes: tuple[str, ...] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Ask these nodes, or all, once; the snapshots of those that answered."""
        async with self._busy:
            found: dict[str, dict[str, Any]] = {}
            async with trio.open_nursery() as nursery:
                for node in nodes or self.hosts.nodes:
                    nursery.start_soon(self._observe, node, phase, found)
            self.latest = found
            return found

    def close(self) -> None:
        """Drop all connections."""
        for client in self._clients.values():
            client.close()

    async def _observe(self, node: str, phase: str, found: dict[str, dict[str, Any]]) -> None:
        client = self._clients.get(node)
        if client is None:
            opener = partial(self.hosts.open, node)
            client = self._clients[node] = Client(opener, self.hosts.password)
        invoked = {"phase": phase}
        self.recorder.add(OBSERVER, INVOKE, "observe", invoked, node=node)
        kind, value, error = INFO, {}, "cancelled"
        try:
            value = await snapshot(client)
            if phase == "end" and value["registered"]:
                value["kept"] = await ids_in(client, ("acked",))
            kind, error = OK, ""
            found[node] = value
        except Trouble as trouble:
            kind, error = (INFO if trouble.was_sent else FAIL), trouble.kind
        except ReplyError as answer:
            kind, error = FAIL, str(answer)
        finally:
            rss = {"rss": self.hosts.rss_bytes(node)} if value else {}
            completed = {**invoked, **value, **rss}
            self.recorder.add(OBSERVER, kind, "observe", completed, node=node, error=error)


async def snapshot(client: Client) -> dict[str, Any]:
    """One node's own word; see jepsen.history. Raises ReplyError and Trouble."""
    began = trio.current_time()
    await client.call("PING", timeout_s=ANSWER_S)
    lag_ms = round((trio.current_time() - began) * 1_000, 1)
    info = fields_of(await client.call("INFO", timeout_s=ANSWER_S))
    view = view_of(await client.call("CLUSTER", "NODES", timeout_s=ANSWER_S))
    registered, acked = int(info["registered_jobs"]), int(info["acked_jobs"])
    found = {
        **view,
        "registered": registered,
        "queued": int(info["queued_jobs"]),
        "delivered": int(info["delivered_jobs"]),
        "delayed": int(info["delayed_jobs"]),
        "acked": acked,
        "bytes": int(info["body_bytes"]),
        "memory": int(info["used_memory"]),
        "lag_ms": lag_ms,
    }
    if registered - acked <= IDS_MAX:
        found["ids"] = await ids_in(client, UNACKED) if registered else []
    return found


async def ids_in(client: Client, states: tuple[str, ...]) -> list[str]:
    """Ids of all jobs that the node has in one of these states, sorted; acks of jobs it never met aren't shown."""
    wanted = tuple(word for state in states for word in ("STATE", state))
    scan = ("JSCAN", "0", "BUSYLOOP", *wanted, "REPLY", "id")
    _, ids = await client.call(*scan, timeout_s=ANSWER_S)
    return sorted(each.decode() if isinstance(each, bytes) else each for each in ids)


def fields_of(raw: bytes) -> dict[str, str]:
    """The fields of INFO or CLUSTER INFO."""
    lines = raw.decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def view_of(raw: bytes) -> dict[str, Any]:
    """Of CLUSTER NODES: own id, members it reaches and itself, who fails or is suspect, the number of links."""
    own, members, failing, links = "", [], [], 0
    for line in raw.decode(errors="surrogateescape").splitlines():
        words = line.split()
        if len(words) < 6:
            continue
        node_id, flags, is_linked = words[0], words[2].split(","), words[5] == "connected"
        if "myself" in flags:
            own = node_id
        elif is_linked:
            links += 1
        if "myself" in flags or is_linked:
            members.append(node_id)
        if {"fail", "fail?", "handshake"} & set(flags):
            failing.append(node_id)
    return {"self": own, "members": sorted(members), "failing": sorted(failing), "links": links}


def views_agree(
    snapshots: dict[str, dict[str, Any]], nodes: tuple[str, ...], *, is_core: bool = False
) -> bool:
    """True if all these nodes answered, reach one another and nobody else, and suspect nobody.

    Of a core it is known that the others are gone, so that these may be suspected.
    """
    if set(snapshots) != set(nodes):
        return False
    everyone = sorted(each["self"] for each in snapshots.values())
    feared = set(everyone) if is_core else None
    return all(
        each["members"] == everyone
        and not (set(each["failing"]) if feared is None else feared & set(each["failing"]))
        for each in snapshots.values()
    )
