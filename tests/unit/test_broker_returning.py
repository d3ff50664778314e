"""A broker whose node was forgotten and comes back: a large store is put aside in steps, and nothing comes between."""

from __future__ import annotations

from cluster.ready import ConnId
from disque.broker import Broker
from disque.core import commands as cmd
from disque.core.delivery import drop
from disque.core.ready import ClientId
from tests.unit.test_broker_frozen import ME, NOW, OTHER, PEER, make

JOBS = 2_500


def returning() -> Broker:
    broker = make()
    for _ in range(JOBS):
        broker.command(ME, cmd.AddJob(b"q", b"body", 0, replicate=1, retry_ms=10_000))
    broker.take_ready()
    broker._come_back()
    return broker


def test_a_large_store_is_put_aside_in_steps_and_each_turn_takes_one() -> None:
    broker = returning()
    state = broker.engine.state
    counts = [len(state.quarantine)]
    while broker.is_returning:
        assert broker.next_wakeup_ms() == NOW
        broker.advance(NOW)
        broker.take_ready()
        broker.engine.check()
        counts.append(len(state.quarantine))
    assert counts == [1_000, 2_000, JOBS]
    assert state.self_id == broker.membership.view().self_id
    assert (state.jobs, state.returning is None) == ({}, False)


def test_peers_are_heard_again_only_when_all_is_put_aside() -> None:
    broker = returning()
    counts = broker.engine.state.counts
    for _ in range(3):
        broker.membership._state.ready.payloads.append((PEER, 7, b"?"))
        broker.frame(ConnId(1), b"")
        assert counts.bad_payloads == (not broker.is_returning)
        broker.advance(NOW)


def test_a_command_that_comes_all_the_same_sees_the_whole() -> None:
    broker = returning()
    id_ = next(reversed(broker.engine.state.jobs))
    broker.command(OTHER, cmd.AckJob((id_,)))
    assert not broker.is_returning
    assert broker.take_ready().replies == [(OTHER, 1)]
    broker.engine.check()


def test_what_is_evicted_meanwhile_is_left_alone() -> None:
    broker = returning()
    state = broker.engine.state
    drop(state, next(reversed(state.jobs.values())))
    while broker.is_returning:
        broker.advance(NOW)
    assert len(state.quarantine) == JOBS - 1
    broker.engine.check()


def test_a_second_return_waits_for_the_first() -> None:
    broker = returning()
    broker._come_back()
    while broker.is_returning:
        broker.advance(NOW)
    assert len(broker.engine.state.quarantine) == JOBS


def test_a_reset_to_another_id_tells_all_who_waited() -> None:
    broker = make()
    clients = [ClientId(n) for n in range(12_000)]
    for client in clients:
        broker.command(client, cmd.GetJob((b"q",)))
    broker.take_ready()
    broker.reset(new_id=PEER)
    told: list[ClientId] = []
    for ms in range(5):
        broker.advance(NOW + ms)
        told += [client for client, _ in broker.take_ready().replies]
    assert sorted(told) == clients
