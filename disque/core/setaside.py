"""Setting aside: all that a node knows of jobs and queues leaves its place in one go, however much it is.

What was set aside is in the trash: its timers and its memory are seen to in steps, later (flushing).
"""

from __future__ import annotations

from disque.core.state import ByState, State, Tally


def put_all_aside(state: State) -> None:
    """Begin as if there had never been a job."""
    for peer in state.peers.values():
        state.agenda.cancel(peer)
        peer.moves.clear()  # not what was taken in: a source that asks now mustn't hear no (B6.5)
    if state.leaver is not None:
        leaver = state.leaver
        leaver.ids, leaver.kept, leaver.asked, leaver.carried = [], {}, {}, {}
    for name in POOLS:
        pool = getattr(state, name)
        if pool:
            state.trash.pools.append(pool)
            setattr(state, name, type(pool)())
    state.by_state = ByState()
    state.body_bytes = state.paged_bytes = state.spec_bytes = state.name_bytes = 0
    state.total = Tally()


# Pools of the state; who waits comes first, and what refers to jobs before the jobs
POOLS = (
    "getting", "adding", "adding_of", "tallies", "expired", "offered", "hungry", "quarantine", "asks", "orders",
    "dummy_answers", "under_replicated", "repairs", "ties", "absences", "tombstones", "long_tombstones", "marks",
    "queues", "undone", "dummies", "spent", "jobs",
)  # fmt: skip
