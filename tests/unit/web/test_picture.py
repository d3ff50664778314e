"""Picture: replies become values, silent nodes are left out, counters that went back are no negative rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.web import picture
from disque.web.picture import QueueRow, Sample, Totals
from disque.web.replies import Failure

if TYPE_CHECKING:
    from disque.web.replies import Reply

INFO = b"# Jobs\r\nqueued_jobs:5\r\nadded_total:100\r\nos:Linux: 6\r\n\r\n# Empty\r\n"
QUEUE: list[Reply] = [
    b"name",
    b"q\xff",
    b"len",
    3,
    b"oldest-age",
    7,
    b"delivered",
    1,
    b"jobs-in",
    10,
    b"pause",
    b"in",
]


def sample(at_s: float, **fields: int) -> Sample:
    """A sample with these fields in INFO."""
    return Sample(at_s, {name: str(count) for name, count in fields.items()}, {})


def test_fields_of_info() -> None:
    assert picture.fields(INFO) == {"queued_jobs": "5", "added_total": "100", "os": "Linux: 6"}
    assert picture.fields(Failure("LOADING")) == {}


def test_a_queue_as_it_is_told() -> None:
    assert picture.queue_row(QUEUE) == QueueRow(
        b"q\xff", length=3, oldest_s=7, delivered=1, jobs_in=10, pause="in"
    )
    assert picture.queue_row(None) is None
    assert picture.queue_row([b"len", 3]) is None


def test_links_by_peer_without_self_and_handshakes() -> None:
    text = (
        b"aa 1.2.3.4:7711 myself 0 0 connected\n"
        b"bb 1.2.3.5:7711 noflags 0 0 connected\n"
        b"cc 1.2.3.6:7711 fail 0 0 disconnected\n"
        b"dd 1.2.3.7:7711 fail?,leaving 0 0 connected\n"
        b"ee 1.2.3.8:7711 handshake 0 0 disconnected\n"
        b"\n"
    )
    assert picture.links(text) == {"bb": "connected", "cc": "fail", "dd": "fail?"}
    assert picture.links(Failure("LOADING")) == {}


def test_queues_of_several_nodes_are_summed() -> None:
    one = Sample(0, {}, {}, queues={b"q": QueueRow(b"q", 2, 5, pause="in", jobs_in=1)})
    two = Sample(
        0,
        {},
        {},
        queues={b"q": QueueRow(b"q", 3, None, pause="out", jobs_in=4), b"r": QueueRow(b"r")},
    )
    assert picture.sum_queues([one, two]) == {
        b"q": QueueRow(b"q", 5, 5, pause="all", jobs_in=5),
        b"r": QueueRow(b"r"),
    }


def test_totals_go_over_all_nodes_and_rates_over_their_last_step() -> None:
    steps = [
        (sample(10, added_total=100), sample(12, added_total=140, queued_jobs=3)),
        (None, sample(12, added_total=9_000, queued_jobs=4, acked_total=1)),
    ]
    assert picture.totals(steps, b"dead") == Totals(waiting=7, added_rate=20)


def test_a_node_that_started_again_has_no_negative_rate() -> None:
    steps = [(sample(10, added_total=100), sample(12, added_total=0))]
    assert picture.totals(steps, b"dead").added_rate == 0


def test_rates_of_queues_need_both_samples() -> None:
    then = Sample(0, {}, {}, queues={b"q": QueueRow(b"q", jobs_in=1, jobs_out=0)})
    now = Sample(
        2, {}, {}, queues={b"q": QueueRow(b"q", jobs_in=5, jobs_out=1), b"new": QueueRow(b"new")}
    )
    assert picture.queue_rates([(then, now), (None, now)]) == {b"q": (2.0, 0.5)}
