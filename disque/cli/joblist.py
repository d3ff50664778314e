"""Job list: what all nodes together know of jobs.

Each holder tells of its own copy alone: one has it queued, the others call it active. Here the copies of a job become
one state, in the words of QSTAT GLOBAL. Nothing is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from disque.cli.connection import ServerError
from disque.cli.replies import ErrorReply, plain
from disque.cli.survey import job_ids
from disque.client import results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from disque.cli.connection import Connection
    from disque.cli.survey import Survey
    from disque.client.results import JobInfo

CHUNK = 100  # jobs that are asked for at once
ID_LENGTH = 40

# A state of ours -> what JSCAN calls the copies among which such jobs are.
STATES: Mapping[str, tuple[str, ...]] = {
    "queued": ("queued",),
    "delivered": ("active",),
    "delayed": ("active",),
    "wait-repl": ("wait-repl",),
    "acked": ("acked",),
    "dead": (),
}


@attrs.frozen
class JobView:
    """A job as its copies tell it: by node id, at least one."""

    copies: Mapping[str, JobInfo]

    @property
    def best(self) -> JobInfo:
        """The copy that says most: it knows the job's body, and of most deliveries."""
        return max(
            self.copies.values(), key=lambda copy: (copy.body is not None, copy.deliveries or 0)
        )

    @property
    def state(self) -> str:
        """queued, delivered (a worker has it), delayed (it waits for its time), wait-repl or acked."""
        return merged_state(list(self.copies.values()))

    @property
    def due_in(self) -> float | None:
        """Seconds until the first holder queues it again, None if it is queued or never will be."""
        if self.state == "queued":
            return None
        times = [copy.next_requeue_within for copy in self.copies.values()]
        return min([each for each in times if each is not None], default=None)


def merged_state(copies: Sequence[JobInfo]) -> str:
    """One word for a job of which these copies are known."""
    states = {copy.state for copy in copies}
    for state in ("acked", "queued"):
        if state in states:
            return state
    if states == {"wait-repl"}:
        return "wait-repl"
    # A delivery that a NACK took back is over; without WITHCOUNTERS' deliveries (C Disque) all that is active is out.
    is_out = any([copy.deliveries is None or copy.deliveries > copy.nacks for copy in copies])
    return "delivered" if is_out else "delayed"


def find_jobs(survey: Survey, queue: bytes | None, state: str | None) -> Iterator[JobView]:
    """The jobs of the cluster, each once, as far as its nodes can be asked; narrowed by queue and state."""
    filters: list[str | bytes] = [] if queue is None else ["QUEUE", queue]
    for word in STATES[state] if state else ():
        filters += ["STATE", word]
    told = survey.each(lambda connection: job_ids(connection, *filters))
    ids = list(dict.fromkeys([id_ for node in told.values() for id_ in node]))
    for start in range(0, len(ids), CHUNK):
        for view in look_up(survey, ids[start : start + CHUNK]):
            if matches(view, queue, state):
                yield view


def matches(view: JobView, queue: bytes | None, state: str | None) -> bool:
    """True if the job as a whole is in that queue and state; dead letters are in whatever state they are."""
    best = view.best
    if queue is not None and (best.queue or "").encode("utf-8", "surrogateescape") != queue:
        return False
    if state == "dead":
        return best.reason is not None
    return state is None or view.state == state


def look_up(survey: Survey, ids: Sequence[str], node: str | None = None) -> list[JobView]:
    """What the nodes, or one by its id, know of these jobs; those that none knows are left out."""
    found: list[JobView] = []
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        told = survey.each(_show(chunk), node)
        for id_ in chunk:
            copies = {node: infos[id_] for node, infos in told.items() if id_ in infos}
            if copies:
                found.append(JobView(copies))
    return found


def _show(ids: Sequence[str]) -> Callable[[Connection], dict[str, JobInfo]]:
    """Asks one node for these jobs."""

    def ask(connection: Connection) -> dict[str, JobInfo]:
        found = {}
        for id_, reply in zip(
            ids, connection.pipeline([("SHOW", id_) for id_ in ids]), strict=True
        ):
            if isinstance(reply, ErrorReply):
                raise ServerError(reply)
            info = results.job_info(plain(reply))
            if info is not None:
                found[id_] = info
        return found

    return ask


def check_id(text: str) -> str:
    """The id, or click.BadParameter that shows what isn't one."""
    dashes = (1, 10, 35)
    if len(text) != ID_LENGTH or text[0] != "D" or any(text[at] != "-" for at in dashes):
        raise click.BadParameter(
            f"no job id: {text!r}; one is D-<8>-<24>-<4>, {ID_LENGTH} characters"
        )
    return text


def job_json(view: JobView) -> dict[str, Any]:
    """A job as JSON; times in seconds, `due_in` until it is queued again, `copies` node id -> state there."""
    best = view.best
    return {
        "id": best.id,
        "queue": name_bytes(best.queue),
        "state": view.state,
        "body": best.body,
        "created_at": best.created_at,
        "ttl": best.ttl,
        "due_in": view.due_in,
        "delay": best.delay,
        "retry": best.retry,
        "replicate": best.replicate,
        "priority": best.priority,
        "nacks": best.nacks,
        "additional_deliveries": best.additional_deliveries,
        "deliveries": best.deliveries,
        "max_deliveries": best.max_deliveries,
        "dead_letter": name_bytes(best.dead_letter),
        "reason": best.reason,
        "own_queue": name_bytes(best.own_queue),
        "headers": [[name_bytes(name), value] for name, value in best.headers.items()],
        "copies": {node: copy.state for node, copy in view.copies.items()},
        "holders": sorted({node for copy in view.copies.values() for node in copy.nodes_delivered}),
    }


def name_bytes(name: str | None) -> bytes | None:
    """A name of a reply as the bytes that it was."""
    return None if name is None else name.encode("utf-8", "surrogateescape")
