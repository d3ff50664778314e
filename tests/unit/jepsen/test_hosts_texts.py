"""Pure parts of hosts: texts for nft, ip, docker and servers, and the plans behind them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from jepsen.hosts import base, clocks, compose, disks, local, netns, nft, tracing
from jepsen.hosts.base import HostOptions, HostsError, all_links, make_prefix


def test_links_are_every_ordered_pair():
    assert all_links(("a", "b")) == {("a", "b"), ("b", "a")}
    assert len(all_links(HostOptions(count=5).nodes)) == 20


def test_prefix_names_the_process_that_made_it():
    assert re.fullmatch(rf"dqj-{os.getpid()}-{base.pid_space()}[0-9a-f]{{4}}", make_prefix())
    assert HostOptions().prefix != HostOptions().prefix


@pytest.mark.parametrize("count", [0, base.NODES_MAX + 1])
def test_node_counts_out_of_range_are_refused(count):
    with pytest.raises(ValueError, match="count"):
        HostOptions(count=count)


def test_table_hooks_the_bridge_where_frames_pass_and_a_node_where_it_hears():
    bridge, inet = nft.table(nft.FAMILY_BRIDGE), nft.table(nft.FAMILY_INET)
    assert bridge.startswith("table bridge jepsen {")
    assert "type filter hook forward priority 0; policy accept;" in bridge
    assert "type filter hook input priority 0; policy accept;" in inet
    assert "ip saddr . ip daddr vmap @verdicts" in bridge


def test_verdicts_replace_all_at_once():
    assert nft.verdicts("bridge", []) == (
        "flush map bridge jepsen verdicts\nflush chain bridge jepsen lossy\n"
    )
    text = nft.verdicts("bridge", [("10.0.0.2", "10.0.0.1"), ("10.0.0.1", "10.0.0.2")])
    elements = "{ 10.0.0.1 . 10.0.0.2 : drop, 10.0.0.2 . 10.0.0.1 : drop }"
    assert text.splitlines()[2:] == [f"add element bridge jepsen verdicts {elements}"]


def test_a_link_that_is_cut_and_lossy_is_cut():
    text = nft.verdicts("inet", [("1", "2")], [("1", "2"), ("2", "1")], 0.125)
    assert text.splitlines()[2:] == [
        "add rule inet jepsen lossy numgen random mod 10000 < 1250 counter drop",
        "add element inet jepsen verdicts { 1 . 2 : drop, 2 . 1 : jump lossy }",
    ]


def test_losing_everything_is_a_cut():
    text = nft.verdicts("inet", [], [("1", "2")], 1.0)
    assert text.splitlines()[2:] == ["add element inet jepsen verdicts { 1 . 2 : drop }"]


def test_lost_packets_are_read_from_what_nft_lists():
    listed = "chain lossy {\n numgen random mod 10000 < 3000 counter packets 17 bytes 1428 drop\n}"
    assert nft.lost(listed) == 17
    assert nft.lost("chain lossy {\n}") == 0, "nothing is lossy"


def test_no_loss_leaves_lossy_links_alone():
    assert "jump" not in nft.verdicts("bridge", [], [("1", "2")], 0.0)


def test_every_node_has_an_address_of_its_own_in_the_range_for_tests():
    plan = netns.plan_addresses(HostOptions(count=base.NODES_MAX).nodes)
    assert plan["n1"] == "198.18.7.11"
    assert len(set(plan.values())) == base.NODES_MAX + 1
    assert all(0 < int(address.rpartition(".")[2]) < 255 for address in plan.values())


def test_batches_join_each_member_to_the_bridge():
    lines = netns.switch_batch("dqj-1-00000000", ["n1", "clients"]).splitlines()
    assert lines[0].startswith("link add br0 type bridge")
    assert "link add clients type veth peer name eth0 netns dqj-1-00000000-clients" in lines
    assert "link set n1 master br0 up" in lines
    assert "address add 1.2.3.4/24 dev eth0" in netns.member_batch("1.2.3.4")


def test_dial_map_says_the_way_for_each_bus():
    text = local.dial_map({"n2": ("127.0.0.1", 5)}, {"n2": ("127.0.0.1", 22_000)})
    assert text == "127.0.0.1:22000=127.0.0.1:5"


def test_overrides_keep_crashes_down_and_pass_settings():
    options = HostOptions(count=3, flags=("--hz", "20"), node_flags={"n2": ("--timeout", "9")})
    services = compose.overrides(options)["services"]
    assert sorted(services) == ["disque-1", "disque-2", "disque-3"]
    assert services["disque-1"]["restart"] == "no"
    assert services["disque-1"]["command"] == ["--dir", "/data", "--hz", "20"]
    assert services["disque-2"]["command"][-2:] == ["--timeout", "9"]
    assert services["disque-3"]["environment"]["DISQUE_CLUSTER_NODE_TIMEOUT"] == "1000"


def inspected(*, is_running: bool) -> dict[str, object]:
    return {
        "State": {"Running": is_running, "Pid": 77},
        "NetworkSettings": {"Networks": {"x_default": {"IPAddress": "172.18.0.2"}}},
        "Mounts": [{"Destination": "/data", "Source": "/var/lib/x"}],
    }


def test_what_docker_tells_of_a_container():
    found = compose.container_of(inspected(is_running=True))
    assert found == compose.Container(77, "172.18.0.2", Path("/var/lib/x"))
    assert compose.container_of(inspected(is_running=False)) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (HostOptions(count=5), "has 3 nodes, asked for are 5"),
        (HostOptions(count=3, command=("other",)), "what is in the image"),
    ],
)
def test_compose_refuses_what_its_file_can_t_give(options, complaint):
    with pytest.raises(HostsError, match=complaint):
        compose.ComposeHosts(options)


@pytest.mark.parametrize(
    "told",
    ["", "\n", " /data", "backup /v/backup/_data", "dqj-1-00000000_data-1 /v/backup/_data", "/v/x"],
)
def test_only_a_volume_of_the_run_is_emptied(told: str):
    with pytest.raises(HostsError, match="no volume of dqj-1-00000000"):
        compose.volume_of(told, "dqj-1-00000000")
    mine = "dqj-1-00000000_data-1 /v/dqj-1-00000000_data-1/_data\n"
    folder = Path("/v/dqj-1-00000000_data-1")
    assert compose.volume_of(mine, "dqj-1-00000000") == (folder / "_data", folder)


def test_nothing_outside_the_runs_folder_is_emptied(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine/n1/data", "others"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "mine/link").symlink_to(tmp_path / "others")
    mine = tmp_path / "mine"
    for path in (Path(), mine, tmp_path / "others", mine / "link", mine / "../others"):
        with pytest.raises(HostsError, match="stays as it is"):
            disks.wipe(path, mine)
    disks.wipe(mine / "n1/data", mine)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("file"))
    assert left == ["others/file"]


def test_outside_loopback_there_is_always_a_password_and_a_secret():
    first, second = (netns.NamespaceNetwork(HostOptions()) for _ in range(2))
    assert len(first.password) >= 16
    assert len(first.secret) >= 32
    assert first.password != second.password
    assert netns.NamespaceNetwork(HostOptions(password="p")).password == "p"


def test_clock_offsets_are_replaced_whole(tmp_path: Path):
    control = tmp_path / "clock"
    clocks.set_offset(control, 0)
    clocks.set_offset(control, -12.5)
    assert control.read_text() == "-12.500\n"
    assert [each.name for each in tmp_path.iterdir()] == ["clock"]


def test_injections_name_every_way_to_sync():
    assert tracing.slow(1.5) == "inject=fsync,fdatasync,sync_file_range:delay_exit=1500"
    assert tracing.failing() == "inject=fsync,fdatasync,sync_file_range:error=EIO"
