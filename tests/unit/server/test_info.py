"""INFO: sections, fields and their order, as clients look for them."""

from __future__ import annotations

import pytest

from disque.server.info import Figures, human_bytes, info_text
from tests.unit.server.world import running

FIELDS = {
    "Server": "disque_version disque_git_sha1 disque_git_dirty disque_build_id os arch_bits "
    "multiplexing_api gcc_version process_id run_id tcp_port uptime_in_seconds uptime_in_days hz "
    "executable config_file",
    "Clients": "connected_clients client_longest_output_list client_biggest_input_buf "
    "blocked_clients http_clients",
    "Memory": "used_memory used_memory_human used_memory_rss used_memory_peak "
    "used_memory_peak_human mem_fragmentation_ratio mem_allocator",
    "Jobs": "registered_jobs queued_jobs delivered_jobs delayed_jobs acked_jobs body_bytes "
    "under_replicated_jobs dead_lettered_total cancelled_total forward_timeouts "
    "added_total delivered_total redelivered_total acked_total nacked_total norepl_total",
    "Queues": "registered_queues",
    "Persistence": "loading aof_enabled aof_state aof_rewrite_in_progress aof_rewrite_scheduled "
    "aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status "
    "aof_last_write_status",
    "Stats": "total_connections_received total_commands_processed instantaneous_ops_per_sec "
    "total_net_input_bytes total_net_output_bytes instantaneous_input_kbps "
    "instantaneous_output_kbps rejected_connections latest_fork_usec topic_messages_dropped "
    "topic_subscribers_dropped",
    "CPU": "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children",
    "Limits": "auth_failures auth_refused tls_handshakes_failed strangers_dropped "
    "clients_per_address_refused clients_dropped_output clients_dropped_memory "
    "requests_over_limit pipelines_paused reads_paused "
    "queues_refused queue_names_refused blocked_clients_refused dummy_acks_dropped "
    "tombstones_dropped marks_dropped topic_messages_dropped bus_handshakes_dropped bus_links_dropped",
}


async def test_default_has_all_sections_in_order_but_commandstats() -> None:
    async with running() as world:
        blocks = info_text(world.shell, b"default").decode().removesuffix("\r\n").split("\r\n\r\n")
    shown = {
        block.split("\r\n")[0].removeprefix("# "): " ".join(
            line.split(":")[0] for line in block.split("\r\n")[1:]
        )
        for block in blocks
    }
    assert shown == FIELDS
    assert list(shown) == list(FIELDS)


async def test_one_section_and_an_unknown_one() -> None:
    async with running() as world:
        assert info_text(world.shell, b"queues") == b"# Queues\r\nregistered_queues:0\r\n"
        assert info_text(world.shell, b"nosuch") == b""


async def test_commandstats_count_calls_and_only_those_carried_out() -> None:
    async with running() as world:
        await world.connect().ask(b"QLEN q\r\nQLEN q\r\nQLEN\r\n", b":0\r\n:0\r\n-ERR")
        text = info_text(world.shell, b"commandstats").decode()
        assert "cmdstat_qlen:calls=2,usec=" in text
        assert "# Commandstats" in info_text(world.shell, b"all").decode()


async def test_fresh_node_reports_less_than_2_mib() -> None:
    async with running() as world:
        text = info_text(world.shell, b"memory").decode()
        assert 0 < int(text.split("used_memory:")[1].split("\r\n")[0]) < 2 << 20


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1536 << 10, "1.50M"), (5 << 40, "5.00T")],
)
def test_size_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_rates_are_means_over_the_remembered_seconds() -> None:
    figures = Figures()
    for second in range(40):
        figures.commands_processed = second * 100
        figures.net_input_bytes = second * 2048
        figures.sample(second * 1000, second * 1024)
    assert figures.rates() == (100, 2.0, 1.0)


def test_samples_that_come_late_are_lag_of_the_loop() -> None:
    figures = Figures()
    for at_ms in (5_000, 6_000, 7_250):
        figures.sample(at_ms, 0)
    assert (sum(figures.loop_lag.counts), figures.loop_lag.sum_ms) == (2, 250)
