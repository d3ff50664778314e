"""When a lease is renewed next, and that only what is held is."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from disque.client.errors import (
    JobDoneError,
    JobUnknownError,
    TooLateError,
    UnreachableError,
)
from disque.client.leases import AGAIN_S, Leases, until_next

PATIENCE_S = 20.0


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        (60.0, 20.0),
        (1.0, 1 / 3),
        # RETRY 0 is never offered again.
        (0.0, None),
        (JobDoneError("Job already acknowledged.", "ACKED"), None),
        (TooLateError("Half of job TTL already elapsed", "TOOLATE"), None),
        (JobUnknownError("Job not known to 1 of 3 nodes", "NOJOB"), AGAIN_S),
        (UnreachableError({"a": "refused"}), AGAIN_S),
    ],
)
def test_the_answer_says_when_to_ask_again(answer: Any, wait_s: float | None) -> None:
    assert until_next("D-1", answer) == (None if wait_s is None else pytest.approx(wait_s))


def test_what_can_t_be_renewed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        until_next("D-1", TooLateError("Half of job TTL already elapsed", "TOOLATE"))
        until_next("D-2", JobDoneError("Job already acknowledged.", "ACKED"))
    assert [record.getMessage() for record in caplog.records] == [
        "lease-not-renewed id=D-1 error=TOOLATE Half of job TTL already elapsed"
    ]


class Broker:
    """A client that only knows WORKING; one third of RETRY is no time at all."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.was_said = threading.Semaphore(0)
        self._asked: list[str] = []

    def pipeline(self) -> Broker:
        return self

    def working(self, job_id: str) -> None:
        self._asked.append(job_id)

    def execute(self) -> list[Any]:
        asked, self._asked = self._asked, []
        self.said += asked
        self.was_said.release()
        return [JobDoneError("", "ACKED") if job_id == "done" else 0.001 for job_id in asked]


def test_a_job_is_renewed_until_it_is_dropped() -> None:
    broker = Broker()
    leases = Leases(broker)  # type: ignore[arg-type]
    leases.hold("kept")
    leases.hold("done")
    leases.hold("dropped")
    leases.drop("dropped")
    for _ in range(3):
        assert broker.was_said.acquire(timeout=PATIENCE_S)
    assert broker.said.count("kept") >= 2
    assert broker.said.count("done") == 1
    assert "dropped" not in broker.said
    assert ("kept" in leases, "done" in leases, len(leases)) == (True, False, 1)
    leases.drop("kept")
    assert len(leases) == 0
    # It waits for nothing now, and starts again.
    leases.hold("later")
    while "later" not in broker.said:
        assert broker.was_said.acquire(timeout=PATIENCE_S)
    leases.close()
    assert len(leases) == 0


class SlowBroker(Broker):
    """WORKING is answered when it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def execute(self) -> list[Any]:
        self.was_said.release()
        assert self.may_answer.wait(PATIENCE_S)
        return super().execute()


def test_a_job_isn_t_given_back_while_working_is_said_of_it() -> None:
    broker = SlowBroker()
    leases = Leases(broker)  # type: ignore[arg-type]
    leases.hold("mine")
    assert broker.was_said.acquire(timeout=PATIENCE_S)
    # Of another one nothing is on its way.
    leases.hold("other")
    leases.release("other")
    order: list[str] = []
    giving = threading.Thread(target=lambda: (leases.release("mine"), order.append("given back")))
    giving.start()
    order.append("answered")
    broker.may_answer.set()
    giving.join(PATIENCE_S)
    assert order == ["answered", "given back"]
    leases.close()
