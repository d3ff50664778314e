"""Run: what a test does with its nodes when clients and faults are over."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import trio

from jepsen import store
from jepsen.hosts.base import Hosts
from jepsen.options import Options
from jepsen.run import Test as Running
from jepsen.workloads import Params, make
from tests.unit.jepsen.test_nemesis import PaperHosts, pong


async def test_a_core_is_told_to_forget_those_who_are_dead_for_ever(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    hosts = PaperHosts(nodes=("n1", "n2", "n3"))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, partial(pong, hosts), [listener])
    hosts.port = listener.socket.getsockname()[1]
    options = Options(nodes=3, seed=1, store=tmp_path)
    with store.open_run(tmp_path, "queue", {}) as folder:
        running = Running(
            options,
            make("queue", Params(hosts.nodes, 0, -1, 0)),
            cast(Hosts, hosts),
            (),
            folder,
            lambda _line: None,
        )
        core = await running._abandon()
    (dead,) = hosts.dead
    assert sorted((*core, dead)) == sorted(hosts.nodes)
    told = [(op.f, op.value.get("proven")) for op in running.recorder.history]
    assert told == [("start", True), ("forget", None), ("forget", True)]
    assert hosts.ids == ["id-2"]
