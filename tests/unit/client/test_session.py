"""Session: what becomes of a command when nodes refuse, break and fall silent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.client import commands as cmd
from disque.client.errors import (
    AuthenticationError,
    LeavingError,
    NotPermittedError,
    NotReplicatedError,
    OutcomeUnknownError,
    QueuePausedError,
    ReplyError,
    UnreachableError,
)
from disque.client.results import Job
from disque.client.routing import DRIFT_WINDOW
from disque.client.session import Session
from disque.client.transport import run
from disque.client.url import Address
from disque.errors import DisqueError
from disque.resp import encoder
from tests.unit.client.world import CUT, SILENCE, Node, World, cluster, job_id, session_with

ID = job_id("a")
ADDED = f"+{ID}\r\n".encode()
LEAVING = b"-LEAVING This node is leaving the cluster, please connect to a different one\r\n"
PAUSED = b"-PAUSED Queue paused in input, try later\r\n"
TOO_FEW = b"-NOREPL Not enough reachable nodes for the requested replication level\r\n"
TIMED_OUT = b"-NOREPL Timeout reached before replicating to the requested number of nodes\r\n"
ADD = cmd.add_job("q", b"x", timeout=2.0)
ADD_AGAIN = cmd.add_job("q", b"x", timeout=2.0, may_repeat=True)
GOT = encoder.encode([[b"q", ID.encode(), b"x", b"nacks", 0, b"additional-deliveries", 0]])


def with_home(nodes: list[Node], home: Node, **options: float) -> tuple[Session, World]:
    """A session that has just been served by `home`, and knows all."""
    session, world = session_with(nodes, **options)
    others = [node for node in nodes if node is not home]
    for node in others:
        node.is_down = True
    answer, home.answer = home.answer, lambda _: b"+PONG\r\n"
    run(session.call(cmd.ping()))
    request = cmd.execute("PING")
    run(session.call(cmd.Request(request.words, request.read, home="consume")))
    home.answer = answer
    for node in others:
        node.is_down = False
    world.time += 60.0
    session._learned_at = world.time
    for node in nodes:
        node.asked.clear()
    world.pauses.clear()
    return session, world


def asked(nodes: list[Node]) -> list[int]:
    return [len(node.asked) for node in nodes]


def test_the_first_node_tells_the_others_and_the_connection_is_kept() -> None:
    nodes = cluster()
    session, world = session_with(nodes, seeds=1)
    for _ in range(5):
        run(session.call(cmd.ping()))
    assert set(session.addresses) == {node.address for node in nodes}
    assert len(world.streams) == 1
    assert asked(nodes) == [5, 0, 0]


def test_a_lost_node_is_left_at_once_for_another_without_a_pause() -> None:
    nodes = cluster()
    session, world = with_home(nodes, nodes[0])
    nodes[0].is_down = True
    nodes[1].answer = nodes[2].answer = lambda _: ADDED
    assert run(session.call(ADD)) == ID
    assert world.pauses == []
    assert sorted(asked(nodes)) == [0, 0, 1]


@pytest.mark.parametrize("behaviour", [CUT, SILENCE])
def test_an_add_whose_reply_is_lost_is_of_unknown_outcome_and_not_repeated(
    behaviour: bytes,
) -> None:
    nodes = cluster()
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer = lambda _: behaviour
    nodes[1].answer = nodes[2].answer = lambda _: ADDED
    with pytest.raises(OutcomeUnknownError) as caught:
        run(session.call(ADD))
    assert (caught.value.command, caught.value.address) == ("ADDJOB", "a:7711")
    assert isinstance(caught.value.__cause__, OSError)
    assert asked(nodes) == [1, 0, 0]


@pytest.mark.parametrize("behaviour", [CUT, SILENCE, TIMED_OUT])
def test_an_add_that_may_be_repeated_is_repeated_elsewhere(behaviour: bytes) -> None:
    nodes = cluster()
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer = lambda _: behaviour
    nodes[1].answer = nodes[2].answer = lambda _: ADDED
    assert run(session.call(ADD_AGAIN)) == ID
    assert sorted(asked(nodes)) == [0, 1, 1]


def test_an_add_that_was_repeated_in_vain_is_of_unknown_outcome_whatever_the_others_said() -> None:
    for behaviour, others in ((CUT, PAUSED), (TIMED_OUT, TOO_FEW), (TIMED_OUT, TIMED_OUT)):
        nodes = cluster()
        session, _ = with_home(nodes, nodes[0])
        nodes[0].answer = lambda _, behaviour=behaviour: behaviour  # type: ignore[misc]
        nodes[1].answer = nodes[2].answer = lambda _, others=others: others  # type: ignore[misc]
        with pytest.raises(OutcomeUnknownError):
            run(session.call(ADD_AGAIN))
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0], failover_timeout=1.0)
    nodes[1].is_down = True

    def cut_and_end(_: list[bytes]) -> bytes:
        nodes[0].is_down = True
        return CUT

    nodes[0].answer = cut_and_end
    with pytest.raises(OutcomeUnknownError):
        run(session.call(ADD_AGAIN))


def test_what_does_no_harm_twice_is_never_of_unknown_outcome() -> None:
    nodes = cluster(1)
    session, _ = with_home(nodes, nodes[0], failover_timeout=1.0)
    nodes[0].answer = lambda _: CUT
    for request in (cmd.ack_job(ID), cmd.ping(), cmd.get_jobs("q", timeout=1.0)):
        with pytest.raises(UnreachableError):
            run(session.call(request))


def test_silence_counts_only_beyond_what_the_command_may_take() -> None:
    nodes = cluster(1)
    session, world = with_home(nodes, nodes[0], reply_timeout=3.0)
    nodes[0].answer = lambda _: SILENCE
    before = world.time
    with pytest.raises(OutcomeUnknownError):
        run(session.call(ADD))
    assert world.time - before == 2.0 + 3.0


def test_an_add_that_did_not_leave_whole_was_not_done_and_goes_elsewhere() -> None:
    nodes = cluster(2)
    session, world = with_home(nodes, nodes[0])
    world.streams[-1].bytes_left = 20
    nodes[1].answer = lambda _: ADDED
    assert run(session.call(ADD)) == ID
    assert asked(nodes) == [0, 1]


@pytest.mark.parametrize(
    "refusal",
    [
        PAUSED,
        TOO_FEW,
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
        b"-LOADING Disque is loading the dataset in memory\r\n",
    ],
)
def test_a_node_that_refuses_for_a_reason_of_its_own_sends_the_add_elsewhere(
    refusal: bytes,
) -> None:
    nodes = cluster()
    session, world = with_home(nodes, nodes[0])
    nodes[0].answer = lambda _: refusal
    nodes[1].answer = nodes[2].answer = lambda _: ADDED
    assert run(session.call(ADD)) == ID
    assert world.pauses == []


def test_a_leaving_node_sends_consumers_away_for_good_and_makes_an_add_of_unknown_outcome() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer, nodes[0].priority = lambda _: LEAVING, 100
    nodes[1].answer = lambda words: GOT if words[0] == b"GETJOB" else ADDED
    for _ in range(2):
        assert run(session.get_jobs("q", timeout=1.0)) == [Job(ID, "q", b"x")]
    assert asked(nodes) == [1, 2]
    nodes[0].priority = 1
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer = lambda _: LEAVING
    with pytest.raises(OutcomeUnknownError) as caught:
        run(session.call(ADD))
    assert isinstance(caught.value.__cause__, LeavingError)


def test_once_every_node_has_refused_the_last_refusal_is_the_answer() -> None:
    for refusal, kind in ((PAUSED, QueuePausedError), (TOO_FEW, NotReplicatedError)):
        nodes = cluster()
        session, world = session_with(nodes)
        for node in nodes:
            node.answer = lambda _, refusal=refusal: refusal  # type: ignore[misc]
        with pytest.raises(kind):
            run(session.call(ADD))
        assert asked(nodes) == [1, 1, 1]
        assert world.pauses == []


def test_a_refusal_that_is_the_callers_fault_is_tried_once() -> None:
    nodes = cluster()
    session, _ = session_with(nodes)
    for node in nodes:
        node.answer = lambda _: b"-BADID Invalid Job ID format.\r\n"
    with pytest.raises(ReplyError, match="BADID Invalid Job ID format"):
        run(session.call(cmd.ack_job("nonsense")))
    assert sum(asked(nodes)) == 1


def test_a_raw_command_has_its_error_as_it_is() -> None:
    nodes = cluster()
    session, _ = session_with(nodes)
    for node in nodes:
        node.answer = lambda _: TIMED_OUT
    with pytest.raises(ReplyError, match="NOREPL Timeout reached"):
        run(session.call(cmd.execute("ADDJOB", "q", "x", 1)))
    assert sum(asked(nodes)) == 1


def test_without_any_node_it_is_tried_again_with_pauses_until_the_time_is_over() -> None:
    nodes = cluster()
    session, world = session_with(nodes, seeds=2, failover_timeout=5.0)
    for node in nodes:
        node.is_down = True
    with pytest.raises(UnreachableError) as caught:
        run(session.call(cmd.ping()))
    assert caught.value.troubles == {"a:7711": "refused", "b:7711": "refused"}
    assert 5.0 <= sum(world.pauses) <= 7.0
    assert len(world.pauses) < 30


def test_a_node_that_comes_back_in_time_is_found() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes)
    nodes[0].is_down = True

    def come_back() -> None:
        nodes[0].is_down = len(world.pauses) < 3

    world.on_sleep = come_back
    assert run(session.call(cmd.ping())) is None
    assert len(world.pauses) == 3


def test_all_nodes_loading_are_waited_for() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes)
    nodes[0].answer = lambda _: (
        b"+PONG\r\n" if len(world.pauses) > 2 else b"-LOADING Disque is loading\r\n"
    )
    assert run(session.call(cmd.ping())) is None


def test_a_wrong_password_is_said_at_once_and_a_right_one_is_given_on_each_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "disque.client")
    nodes = cluster(2)
    for node in nodes:
        node.password = b"right"
    session, world = session_with(nodes, password="wrong")
    with pytest.raises(AuthenticationError, match="invalid password"):
        run(session.call(cmd.ping()))
    assert world.pauses == []
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(nodes)
    assert all(f"refused by node={node.address} error=" in "".join(told) for node in nodes)
    session, _ = session_with(nodes, password="right")
    run(session.call(cmd.ping()))
    assert sum(asked(nodes)) == 1


def test_a_lost_node_is_told_once_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "disque.client")
    (node,) = nodes = cluster(1)
    session, _ = session_with(nodes)
    for is_down in (True, False, True):
        node.is_down = is_down
        if is_down:
            with pytest.raises(UnreachableError):
                run(session.call(cmd.ping()))
        else:
            run(session.call(cmd.ping()))
    told = [record.getMessage().split(" error=")[0] for record in caplog.records]
    lost = f"cannot reach node={node.address}"
    assert told == [lost, f"reached again node={node.address}", lost]


def test_a_user_who_may_not_even_say_hello_is_told_so_at_once() -> None:
    nodes = cluster(1)
    nodes[0].hello_error = b"-NOPERM this user may not HELLO\r\n"
    session, world = session_with(nodes)
    with pytest.raises(NotPermittedError, match="may not HELLO"):
        run(session.call(cmd.ping()))
    assert world.pauses == []


def test_a_password_for_a_node_that_has_none_does_no_harm() -> None:
    session, _ = session_with(cluster(1), password="any")
    assert run(session.call(cmd.ping())) is None


def test_a_password_asked_for_since_the_connection_was_made_is_given_on_a_new_one() -> None:
    (node,) = nodes = cluster(1)
    node.password = b"right"
    session, world = session_with(nodes, password="right")
    run(session.call(cmd.ping()))
    node.answer = lambda _: (
        b"+PONG\r\n" if len(world.streams) > 1 else b"-NOAUTH Authentication required.\r\n"
    )
    assert run(session.call(cmd.ping())) is None


def test_a_connection_that_ended_while_idle_is_not_used() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes)
    run(session.call(cmd.ping()))
    world.streams[-1].is_cut = True
    nodes[0].answer = lambda _: ADDED
    assert run(session.call(ADD)) == ID
    assert len(world.streams) == 2
    assert world.streams[0].is_closed


def test_a_reply_of_another_shape_is_an_unknown_outcome_not_a_crash() -> None:
    nodes = cluster(1)
    session, _ = session_with(nodes)
    nodes[0].answer = lambda _: b"*1\r\n:1\r\n"
    with pytest.raises(OutcomeUnknownError, match=r"QLEN answered \[1\]"):
        run(session.call(cmd.qlen("q")))


def test_a_view_that_is_old_is_renewed_on_the_way() -> None:
    nodes = cluster()
    session, world = session_with(nodes, refresh=10.0)
    run(session.call(cmd.ping()))
    greeted = sum(node.greeted for node in nodes)
    world.time += 9.0
    run(session.call(cmd.ping()))
    assert sum(node.greeted for node in nodes) == greeted
    world.time += 2.0
    run(session.call(cmd.ping()))
    assert sum(node.greeted for node in nodes) == greeted + 1
    assert len(world.streams) == 1


def test_without_discovery_only_the_named_node_is_asked() -> None:
    nodes = cluster()
    session, _ = session_with(nodes, seeds=1)
    alone = Session(session._transport, session.endpoint.at("b"))
    assert run(alone.call(cmd.ping())) is None
    assert alone.addresses == [Address("b")]
    assert (asked(nodes), nodes[1].greeted) == ([0, 1, 0], 0)


def test_a_closed_session_says_so() -> None:
    session, world = session_with(cluster())
    run(session.call(cmd.ping()))
    session.close()
    assert all(stream.is_closed for stream in world.streams)
    with pytest.raises(RuntimeError, match="closed"):
        run(session.call(cmd.ping()))


def test_a_connection_of_ones_own_is_to_the_home_and_another_once_that_is_lost() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    _, address = run(session.open())
    assert address == nodes[0].address
    session.lost(address)
    _, address = run(session.open())
    assert address == nodes[1].address


def test_a_connection_of_ones_own_is_looked_for_until_the_time_is_over() -> None:
    nodes = cluster(2)
    session, world = session_with(nodes, failover_timeout=2.0)
    for node in nodes:
        node.is_down = True
    with pytest.raises(UnreachableError):
        run(session.open())
    assert sum(world.pauses) >= 2.0


def test_a_node_that_cannot_say_hello_now_still_does_what_it_can() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes, refresh=10.0)
    run(session.call(cmd.ping()))
    world.time += 20.0
    nodes[0].hello_error = b"-MISCONF Errors writing to the AOF file\r\n"
    assert run(session.call(cmd.ping())) is None


def test_whatever_is_no_node_is_unreachable_and_says_what_it_said() -> None:
    nodes = cluster(1)
    nodes[0].hello_error = b"-ERR unknown command 'HELLO'\r\n"
    session, _ = session_with(nodes, failover_timeout=1.0)
    with pytest.raises(UnreachableError, match="a:7711: ERR unknown command 'HELLO'"):
        run(session.call(cmd.ping()))
    nodes[0].hello_error = b"*1\r\n:1\r\n"
    with pytest.raises(UnreachableError, match=r"HELLO answered \[1\]"):
        run(session.call(cmd.ping()))


# Pipelines


def words(requests: list[list[bytes]]) -> list[bytes]:
    return [b" ".join(each) for each in requests]


def test_a_pipeline_gives_each_result_in_its_place_and_errors_as_values() -> None:
    nodes = cluster(1)
    session, _ = session_with(nodes)
    answers = {
        b"PING": b"+PONG\r\n",
        b"QLEN": b":4\r\n",
        b"SHOW": b"-BADID Invalid Job ID format.\r\n",
    }
    nodes[0].answer = lambda words: answers[words[0]]
    pong, error, length = run(session.carry_out([cmd.ping(), cmd.show("x"), cmd.qlen("q")]))
    assert (pong, str(error), length) == (None, "BADID Invalid Job ID format.", 4)


def test_a_pipeline_that_breaks_repeats_what_may_be_and_keeps_what_was_answered() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    seen: list[bytes] = []

    def first(words: list[bytes]) -> bytes:
        seen.append(words[0])
        return CUT if len(seen) == 2 else ADDED

    nodes[0].answer = first
    nodes[1].answer = lambda words: b":7\r\n" if words[0] == b"QLEN" else ADDED
    requests: list[cmd.Request[Any]] = [ADD, ADD, cmd.qlen("q"), ADD_AGAIN, ADD]
    done, lost, length, again, last = run(session.carry_out(requests))
    assert (done, length, again) == (ID, 7, ID)
    assert isinstance(lost, OutcomeUnknownError)
    assert isinstance(last, OutcomeUnknownError)
    assert words(nodes[1].asked) == [b"QLEN q", b"ADDJOB q x 2000"]


def test_what_of_a_pipeline_was_not_sent_yet_goes_elsewhere() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer = lambda _: CUT
    nodes[1].answer = lambda _: ADDED
    large = cmd.add_job("q", b"y" * 40_000)
    lost, *rest = run(session.carry_out([large, large, ADD]))
    assert isinstance(lost, OutcomeUnknownError)
    assert rest == [ID, ID]


def test_refused_commands_of_a_pipeline_go_elsewhere_the_others_stay_done() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    nodes[0].answer = lambda words: PAUSED if words[1] == b"p" else ADDED
    nodes[1].answer = lambda _: ADDED
    results = run(session.carry_out([ADD, cmd.add_job("p", b"x"), ADD]))
    assert results == [ID, ID, ID]
    assert asked(nodes) == [3, 1]


# Waiting for jobs


def test_a_get_that_waits_long_asks_a_while_at_a_time() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes, poll=10.0)

    def nothing(words: list[bytes]) -> bytes:
        world.time += int(words[2]) / 1000
        return b"*-1\r\n"

    nodes[0].answer = nothing
    assert run(session.get_jobs("q", timeout=25.0)) == []
    assert [int(each[2]) for each in nodes[0].asked] == [10_000, 10_000, 5_000]


def test_a_consumer_that_gets_nothing_for_long_asks_another_node() -> None:
    nodes = cluster(2)
    session, world = with_home(nodes, nodes[0], poll=10.0)

    def nothing(words: list[bytes]) -> bytes:
        world.time += int(words[2]) / 1000
        return b"*-1\r\n"

    nodes[0].answer = nothing
    nodes[1].answer = lambda _: GOT
    # the time runs from the first miss
    for _ in range(4):
        assert run(session.get_jobs("q", timeout=4.0)) == []
    assert asked(nodes) == [4, 0]
    assert run(session.get_jobs("q", timeout=4.0)) == [Job(ID, "q", b"x")]


def test_a_get_that_does_not_wait_asks_once() -> None:
    nodes = cluster(1)
    session, _ = session_with(nodes)
    nodes[0].answer = lambda _: b"*-1\r\n"
    assert run(session.get_jobs("q", "p", timeout=0, count=5)) == []
    assert words(nodes[0].asked) == [b"GETJOB NOHANG COUNT 5 WITHCOUNTERS FROM q p"]


def test_a_get_that_goes_elsewhere_waits_for_what_is_left_of_its_time() -> None:
    nodes = cluster(2)
    session, world = with_home(nodes, nodes[0])

    def cut_later(_: list[bytes]) -> bytes:
        world.time += 3.0
        return CUT

    nodes[0].answer = cut_later
    nodes[1].answer = lambda _: GOT
    assert run(session.get_jobs("q", timeout=5.0)) == [Job(ID, "q", b"x")]
    assert int(nodes[1].asked[0][2]) == 2_000


def test_a_consumer_moves_to_the_node_that_produces_for_it() -> None:
    nodes = cluster(2)
    session, _ = with_home(nodes, nodes[0])
    made_by_b = encoder.encode([[b"q", job_id("b" * 8).encode(), b"x"]])
    nodes[0].answer = nodes[1].answer = lambda _: made_by_b
    for _ in range(DRIFT_WINDOW + 10):
        run(session.get_jobs("q", timeout=1.0))
    assert asked(nodes) == [DRIFT_WINDOW, 10]


class Stopped(BaseException):
    """As a cancellation or Ctrl-C."""


def test_a_get_that_is_interrupted_gives_back_the_job_that_was_on_its_way() -> None:
    nodes = cluster(1)
    session, world = session_with(nodes)
    run(session.call(cmd.ping()))
    stream = world.streams[-1]
    nodes[0].answer = lambda words: GOT if words[0] == b"GETJOB" else b":1\r\n"
    receive = stream.receive_some

    async def interrupted(deadline: float | None) -> bytes:
        if not stream.is_finished:
            raise Stopped
        return await receive(deadline)

    stream.receive_some = interrupted  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run(session.get_jobs("q"))
    assert words(nodes[0].asked)[-1] == b"NACK " + ID.encode()
    assert stream.is_closed


# Laws

REFUSALS = {"paused": PAUSED, "too few": TOO_FEW, "leaving": LEAVING, "timed out": TIMED_OUT}
BEHAVIOURS = ["done", "done and cut", "cut", "done and silent", "silent", "down", *REFUSALS]
SCRIPTS = st.lists(st.lists(st.sampled_from(BEHAVIOURS), max_size=4), min_size=1, max_size=4)


def scripted(scripts: list[list[str]], done: list[str]) -> list[Node]:
    """Nodes that behave as told, command after command, and well at the end; `done` is what was carried out."""

    def make(node: Node, script: list[str]) -> None:
        left = list(script)

        def answer(_: list[bytes]) -> bytes:
            behaviour = left.pop(0) if left else "done"
            # a copy may be left after a time-out, too
            if behaviour.startswith("done") or behaviour == "timed out":
                done.append(node.name)
            if behaviour == "down":
                node.is_down = True
            if behaviour in REFUSALS:
                return REFUSALS[behaviour]
            if behaviour == "done":
                return ADDED
            return SILENCE if behaviour.endswith("silent") else CUT

        node.answer = answer

    nodes = cluster(len(scripts))
    for node, script in zip(nodes, scripts, strict=True):
        make(node, script)
    return nodes


@given(SCRIPTS, st.booleans())
def test_an_add_is_done_once_at_most_unless_it_may_be_repeated_and_what_is_said_of_it_is_true(
    scripts: list[list[str]], may_repeat: bool
) -> None:
    done: list[str] = []
    session, _ = session_with(scripted(scripts, done), failover_timeout=3.0)
    (answer,) = run(session.carry_out([ADD_AGAIN if may_repeat else ADD]))
    if answer == ID:
        assert done
    elif not isinstance(answer, OutcomeUnknownError):
        assert isinstance(answer, DisqueError)
        assert done == []
    assert may_repeat or len(done) <= 1


@given(SCRIPTS, st.integers(1, 6))
def test_every_command_of_a_pipeline_has_an_answer_that_is_true(
    scripts: list[list[str]], count: int
) -> None:
    done: list[str] = []
    session, _ = session_with(scripted(scripts, done), failover_timeout=3.0)
    answers = run(session.carry_out([ADD] * count))
    added = [answer for answer in answers if answer == ID]
    unknown = [answer for answer in answers if isinstance(answer, OutcomeUnknownError)]
    refused = [answer for answer in answers if isinstance(answer, DisqueError)]
    assert len(added) + len(refused) == count
    assert len(added) <= len(done) <= len(added) + len(unknown)
