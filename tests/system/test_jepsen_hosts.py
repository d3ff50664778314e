"""Hosts for real: three servers each, on loopback behind the proxy and in namespaces; what they break is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen import doctor
from jepsen.hosts import base, cleaning, namespaces, probing, talking
from jepsen.hosts.base import HostOptions, Hosts, HostsError, all_links
from jepsen.hosts.choosing import LOCAL, NETNS, make_hosts
from jepsen.resp import Client, ReplyError
from tests.system.nodes import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PATIENCE_S = 60.0
LATE_S = 30.0

needs_namespaces = pytest.mark.skipif(
    not probing.can_cut().is_there, reason=f"no namespaces: {probing.can_cut().detail}"
)
KINDS = [LOCAL, pytest.param(NETNS, marks=needs_namespaces)]
# the kind with most to clean up
RICHEST = NETNS if probing.can_cut().is_there else LOCAL


@asynccontextmanager
async def cluster(
    kind: str, folder: Path, *, count: int = 3, **more: object
) -> AsyncIterator[Hosts]:
    options = HostOptions(count=count, folder=folder, patience_s=PATIENCE_S, **more)  # type: ignore[arg-type]
    hosts = make_hosts(kind, options)
    await hosts.setup()
    try:
        yield hosts
        assert all("Traceback" not in hosts.log_text(node) for node in hosts.nodes)
    finally:
        await hosts.teardown()
    assert [each for each in cleaning.find() if each.prefix == options.prefix] == []


async def eventually(what: str, probe: Callable[[], object]) -> None:
    """Poll an async question until it is true."""
    with trio.move_on_after(LATE_S):
        while not await probe():  # type: ignore[misc]
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {LATE_S} s: {what}")


async def reaches(hosts: Hosts, node: str, others: int) -> bool:
    sizes = await talking.view_sizes(hosts, node)
    return sizes is not None and sizes[1] == others


async def full_view(hosts: Hosts) -> None:
    await talking.wait_full_view(hosts, hosts.nodes, LATE_S)


async def is_silent(hosts: Hosts, node: str) -> bool:
    """No answer in a while."""
    with trio.move_on_after(0.5):
        return not await talking.is_answering(hosts, node)
    return True


@pytest.mark.parametrize("kind", KINDS)
async def test_cuts_are_what_was_asked_for_and_nodes_feel_them(kind: str, tmp_path: Path) -> None:
    async with cluster(kind, tmp_path) as hosts:
        every = all_links(hosts.nodes)
        assert await hosts.probe() == every
        await hosts.cut([("n1", "n2")])
        assert every - await hosts.probe() == {("n1", "n2")}
        alone = [link for link in every if "n3" in link]
        await hosts.cut(alone)
        assert every - await hosts.probe() == set(alone)
        await eventually("n3 sees nobody", partial(reaches, hosts, "n3", 0))
        await eventually("n1 sees n2 only", partial(reaches, hosts, "n1", 1))
        await hosts.cut([])
        assert await hosts.probe() == every
        await full_view(hosts)
        await hosts.reset(every)
        await full_view(hosts)
        assert "link-unanswered" in hosts.log_text("n3")


@pytest.mark.parametrize("kind", KINDS)
async def test_servers_die_return_stop_and_go_on(kind: str, tmp_path: Path) -> None:
    async with cluster(kind, tmp_path) as hosts:
        assert all(hosts.rss_bytes(node) > 1 << 20 for node in hosts.nodes)
        await hosts.kill("n2")
        assert not hosts.is_alive("n2")
        assert hosts.rss_bytes("n2") == 0
        assert not await talking.is_answering(hosts, "n2")
        assert await hosts.probe() == all_links(hosts.nodes), "links don't need servers"
        await hosts.start("n2")
        await full_view(hosts)
        await hosts.pause("n3")
        assert hosts.is_alive("n3")
        assert await is_silent(hosts, "n3")
        await hosts.resume("n3")
        await full_view(hosts)
        with pytest.raises(HostsError, match="n1 runs"):
            await hosts.wipe("n1")
        old = await talking.say(hosts, "n2", "CLUSTER", "MYID")
        await hosts.kill("n2")
        await hosts.wipe("n2")
        await hosts.start("n2")
        assert await talking.say(hosts, "n2", "CLUSTER", "MYID") != old
        await hosts.join("n2", "n1")
        await eventually("n2 is back", partial(reaches, hosts, "n2", 2))
        assert (hosts.folder("n1") / "data" / "nodes.conf").exists()


async def test_proxy_delays_what_it_is_told_to(tmp_path: Path) -> None:
    async with cluster(LOCAL, tmp_path, count=2, node_timeout_ms=5_000) as hosts:
        assert base.DELAY in hosts.capabilities
        await hosts.shape(all_links(hosts.nodes), delay_ms=300, jitter_ms=10)
        assert await hosts.probe() == all_links(hosts.nodes)
        with trio.fail_after(LATE_S):
            began = trio.current_time()
            await talking.say(hosts, "n1", "ADDJOB", "q", "body", 4_000, "REPLICATE", 2)
            assert trio.current_time() - began >= 0.55, "there and back"
        await hosts.shape([])
        with pytest.raises(base.UnsupportedError):
            await hosts.shape([("n1", "n2")], loss=0.5)


@needs_namespaces
async def test_namespaces_lose_packets_and_ask_clients_for_a_password(tmp_path: Path) -> None:
    async with cluster(NETNS, tmp_path, count=2) as hosts:
        client = Client(opener=partial(hosts.open, "n1"))
        with pytest.raises(ReplyError, match="NOAUTH"):
            await client.call("INFO", timeout_s=5)
        client.close()
        await hosts.shape([("n1", "n2")], loss=1.0)
        assert all_links(hosts.nodes) - await hosts.probe() == {("n1", "n2")}
        await hosts.shape([("n1", "n2")], loss=0.2)
        assert ("n1", "n2") in await hosts.probe()
        with trio.fail_after(LATE_S):
            while not await hosts.lost():
                await hosts.probe()
        await hosts.shape([])
        await hosts.probe()
        assert await hosts.lost() == 0
        with pytest.raises(base.UnsupportedError):
            await hosts.shape([("n1", "n2")], delay_ms=5)


@pytest.mark.skipif(not probing.can_mount().is_there, reason=probing.can_mount().detail)
async def test_full_disks_keep_a_node_from_saving_until_they_are_freed(tmp_path: Path) -> None:
    async with cluster(LOCAL, tmp_path, count=2, disk_bytes=1 << 20) as hosts:
        await hosts.fill_disk("n1")
        with pytest.raises(ReplyError, match="No space left"):
            await talking.say(hosts, "n1", "CLUSTER", "SAVECONFIG")
        assert await talking.say(hosts, "n2", "CLUSTER", "SAVECONFIG") == "OK"
        await hosts.free_disk("n1")
        assert await talking.say(hosts, "n1", "CLUSTER", "SAVECONFIG") == "OK"


@pytest.mark.skipif(not probing.can_trace().is_there, reason=probing.can_trace().detail)
async def test_fsync_is_slow_then_failing_then_mended(tmp_path: Path) -> None:
    async with cluster(LOCAL, tmp_path, count=2) as hosts:
        await hosts.slow_fsync("n1", 300)
        began = trio.current_time()
        assert await talking.say(hosts, "n1", "CLUSTER", "SAVECONFIG") == "OK"
        assert trio.current_time() - began >= 0.3
        await hosts.fail_fsync("n1")
        with pytest.raises(ReplyError, match="Input/output error"):
            await talking.say(hosts, "n1", "CLUSTER", "SAVECONFIG")
        await hosts.mend_fsync("n1")
        assert await talking.say(hosts, "n1", "CLUSTER", "SAVECONFIG") == "OK"


@pytest.mark.skipif(not probing.can_fake_clock().is_there, reason=probing.can_fake_clock().detail)
async def test_wall_clocks_jump_alone(tmp_path: Path) -> None:
    async with cluster(LOCAL, tmp_path, count=2, is_clock_faked=True) as hosts:
        assert abs(await log_offset_s(hosts, "n1")) < 60
        await hosts.jump_clock("n1", 300)
        assert 240 < await log_offset_s(hosts, "n1") < 360
        assert abs(await log_offset_s(hosts, "n2")) < 60
        await hosts.jump_clock("n1", 0)
        assert abs(await log_offset_s(hosts, "n1")) < 60


async def log_offset_s(hosts: Hosts, node: str) -> float:
    """How far the node's wall clock is ahead of ours, by TIME."""
    reply = await talking.say(hosts, node, "TIME")
    assert isinstance(reply, list)
    return int(reply[0]) - time.time()


async def test_server_that_can_t_start_is_told_with_its_words(tmp_path: Path) -> None:
    options = HostOptions(count=2, folder=tmp_path, flags=("--no-such-directive", "1"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await make_hosts(LOCAL, options).setup()
    assert "unknown directive 'no-such-directive'" in str(caught.value.exceptions)
    assert [each for each in cleaning.find() if each.prefix == options.prefix] == []


def test_doctor_tells_of_each_thing_and_picks_what_works() -> None:
    *lines, _, choice = doctor.table().splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == [each.name for each in doctor.LINES]
    told = {line.split("  ")[0].strip(): " yes " in line for line in lines}
    assert told["proxy"]
    assert choice == f"--hosts auto is {NETNS if told['one-way cuts'] else LOCAL}"


def test_hosts_of_no_kind_are_refused() -> None:
    with pytest.raises(HostsError, match="no kind of hosts is named 'cloud'"):
        make_hosts("cloud", HostOptions())


HARNESS = """\
import sys, trio
from jepsen.hosts.base import HostOptions
from jepsen.hosts.choosing import make_hosts

async def main():
    hosts = make_hosts(sys.argv[1], HostOptions(count=2))
    await hosts.setup()
    print(hosts.options.prefix, flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


def leftovers(prefix: str) -> list[cleaning.Leftovers]:
    return [each for each in cleaning.find() if each.prefix == prefix]


# Ctrl-C is like SIGTERM here, see also test_ctrl_c_heals_drains_checks_and_ends_with_unknown
@pytest.mark.parametrize(
    ("kind", "end"), [(LOCAL, signal.SIGTERM), (RICHEST, signal.SIGKILL)], ids=["ended", "killed"]
)
def test_nothing_outlives_the_harness(kind: str, end: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, kind],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as harness:
        assert harness.stdout is not None
        prefix = harness.stdout.readline().strip()
        try:
            (there,) = leftovers(prefix)
            assert len(there.processes) >= 2
            assert bool(there.namespaces) == (kind == NETNS)
            harness.send_signal(end)
            harness.wait(LATE_S)
            if end == signal.SIGKILL:
                wait_until("servers end", lambda: not any(e.processes for e in leftovers(prefix)))
                assert prefix in [each.prefix for each in cleaning.clean()]
            assert leftovers(prefix) == []
            assert not namespaces.named(f"{prefix}-n1").exists()
        finally:
            harness.kill()
            cleaning.remove_run(prefix)
