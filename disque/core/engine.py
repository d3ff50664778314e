"""The pure heart of a node: inputs one at a time, one output, no I/O.

Four kinds of input: time, a client's command, a peer's message, the cluster view. One output, `Ready`: records to
store, then messages to send, then replies to give.

The owner promises: inputs one at a time; of each Ready all records are stored, as far as the fsync policy says, before
any of its messages or replies leaves, and Readys are handled in order; messages may be lost, delayed, doubled or
reordered; a Ready is turned into bytes before the next input, because it may point at live jobs; a failed append stops
writes with a clear error (MISCONF), never silently. The engine promises: no I/O, no waiting, work bounded by `Limits`,
and no exception for anything that a client or a peer can do.

A client's id has one command at a time: the owner gives each that may have to wait an id of its own.

Time is ms, made once by the owner from the wall clock at start plus monotonic time elapsed; it never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cluster.nodeid import NodeId
from cluster.view import ClusterView
from disque.core import (
    acks,
    asking,
    bounds,
    external,
    federation,
    flushing,
    handling,
    healing,
    idle,
    inquiries,
    introspection,
    leaving,
    logged,
    memory,
    moves,
    publishing,
    repair,
    replication,
    requeue,
    restoring,
    returning,
    scanning,
    shrinking,
)
from disque.core import commands as cmd
from disque.core import messages as msg
from disque.core.acks import mark_due
from disque.core.chores import chore_due
from disque.core.copies import absence_due
from disque.core.delivery import (
    REMOVED_TEXT,
    drop,
    end_get,
    end_wait,
    get_jobs,
    get_timed_out,
)
from disque.core.ending import (
    done_due,
    end_dummies,
    may_be_elsewhere,
    tombstone_due,
)
from disque.core.job import Job, JobState
from disque.core.jobid import JobId
from disque.core.jobqueue import JobQueue
from disque.core.limits import Limits
from disque.core.passes import Chore, Leaver, Pager, Repairer, Returning, Sweep, Trash, Walk
from disque.core.posts import Posts
from disque.core.ready import (
    BASE_KINDS,
    ClientId,
    Ready,
    Record,
    Reply,
    Status,
)
from disque.core.state import (
    Absence,
    AddWait,
    Dice,
    GetWait,
    Inquiry,
    Mark,
    Peer,
    Purge,
    Repair,
    State,
    Tie,
    Tombstone,
    fail,
    peer_of,
    reply,
    wake,
)
from disque.core.topics import Parting


class Engine:
    """One node's jobs and queues; see the module for the contract."""

    def __init__(
        self, *, view: ClusterView, boot: int, since: int, limits: Limits, dice: Dice, now_ms: int
    ) -> None:
        self.state = State(
            self_id=view.self_id,
            boot=boot,
            since=since,
            limits=limits,
            dice=dice,
            now_ms=now_ms,
            view=view,
            started_at=now_ms,
        )
        self._is_restored = False  # and no time has passed since
        self._queue_sweep = idle.QueueSweep()
        wake(self.state, self._queue_sweep, now_ms + limits.queue_sweep_ms)
        self._see(view)

    def _see(self, view: ClusterView) -> None:
        state = self.state
        before = state.view
        healing.view_changed(state, view)
        repair.repair_view_changed(state, before)
        leaving.leaving_view_changed(state)
        asking.inquiries_review(state)
        if may_be_elsewhere(before) and not may_be_elsewhere(view):
            end_dummies(state)
        publishing.topics_view_changed(state, before)

    def tell_time(self, now_ms: int) -> None:
        """Time has come to now_ms, and nothing fires yet. Never goes back."""
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        if self._is_restored:
            self._is_restored = False
            state.started_at = state.now_ms  # to read the log may have taken long

    def advance(self, now_ms: int) -> None:
        """As `tell_time`, and fires what is due, at most `wakeups_a_turn` timers."""
        state = self.state
        self.tell_time(now_ms)
        state.fired = 0
        while state.fired < state.limits.wakeups_a_turn:
            item = state.agenda.pop_due(state.now_ms)
            if item is None:
                break
            state.fired += 1
            if state.trash.pools and flushing.is_trash(state, item):
                continue
            _DUE[type(item)](state, item)
        self._settle()

    def command(self, client: ClientId, command: cmd.Command) -> bool:
        """Carry out a client's command; True if it is answered within this batch."""
        state = self.state
        kind = type(command)
        check = bounds.CHECKS.get(kind)
        if check is not None and (text := check(state, command)) is not None:
            fail(state, client, "ERR", text)
            return True
        _COMMANDS[kind](state, client, command)
        self._settle()
        replies = state.ready.replies
        return bool(replies and replies[-1][0] == client) or not self.is_waiting(client)

    def is_waiting(self, client: ClientId) -> bool:
        """True if a command of this client isn't answered yet."""
        state = self.state
        return (
            client in state.getting
            or client in state.adding_of
            or client in state.inquiry_of
            or client in state.posts.asking
        )

    def receive(self, peer: NodeId, boot: int, message: msg.Message) -> None:
        """A statement of a known peer at this boot; harmless whatever it says, in any order, any number of times."""
        state = self.state
        if peer not in state.view.members or peer == state.self_id:
            return
        known = peer_of(state, peer)
        if boot < known.boot:
            return
        known.boot = boot
        if state.quarantine and returning.is_silent_about(state, message):
            return
        _MESSAGES[type(message)](state, peer, message)
        self._settle()

    def view_changed(self, view: ClusterView) -> None:
        """Membership sees the cluster differently now."""
        self._see(view)
        self._settle()

    def disconnect(self, client: ClientId) -> None:
        """A client has gone: whatever it waits for ends (B7.2)."""
        state = self.state
        wait = state.getting.get(client)
        if wait is not None:
            end_get(state, wait)
        replication.add_lost_client(state, client)
        inquiries.drop_of_client(state, client)
        publishing.leave(state, client)
        self._settle()

    def take_reply(self, client: ClientId) -> Reply:
        """The answer to a command that was answered within this batch, out of the Ready: to be spelled at once.

        It leaves no earlier than the Ready would. IndexError if there is none.
        """
        replies = self.state.ready.replies
        at = len(replies) - 1  # behind it are only those whom this command served
        while replies[at][0] != client:
            at -= 1
        return replies.pop(at)[1]

    def queue_of(self, id_: bytes) -> bytes | None:
        """The queue in which the job of an id lies, or would lie; None if no copy is here."""
        job = self.state.jobs.get(JobId(id_))
        return None if job is None or job.spec is None else job.queue

    def subscription_count(self, subscriber: ClientId) -> int:
        """Topics that a connection has subscribed to."""
        return self.state.topics.count_of(subscriber)

    def adopt_topics(self, old: Engine) -> None:
        """Connections outlive a new identity."""
        publishing.adopt(self.state, old.state)

    # The log

    def restore(self, record: Record, segment: int = 0, offset: int = 0, size: int = 0) -> None:
        """Replay one record of the log, which lies there, before the first advance."""
        state = self.state
        restoring.restore(state, record)
        if record.kind in BASE_KINDS and logged.stands_for(state, record):
            logged.placed(state, record.fields[0], segment, offset, size)  # type: ignore[arg-type]

    def clear_up(self) -> bool:
        """One bounded step of what a replayed flush left to do, as time does too; True if there is more."""
        state = self.state
        flushing.trash_due(state, state.trash)
        return bool(state.trash.pools)

    def restored(
        self, *, since: int | None = None, boot: int | None = None, queued: Iterable[bytes] = ()
    ) -> None:
        """All records are in; `since` is the first boot that they cover whole (B6.7). None: as this engine was made.

        `queued`: ids that lay in their queues at a clean stop and go back there (aof-enqueue-jobs-once).
        """
        for _ in self.finish_restoring(since=since, boot=boot, queued=queued):
            pass

    def finish_restoring(
        self, *, since: int | None = None, boot: int | None = None, queued: Iterable[bytes] = ()
    ) -> Iterator[None]:
        """The same in bounded steps; nothing else may happen to the engine in between."""
        if boot is not None:
            self.state.boot = boot
            self.state.own_claims = self.state.stored = None
        if since is not None:
            self.state.since = since
        self.state.counted.clear()
        yield from returning.restore_quarantine(self.state)
        yield from restoring.finish_restoring(self.state)
        yield from restoring.queue_again(self.state, queued)
        self._is_restored = True

    def set_logged(self, is_logged: bool) -> None:
        """Whether records are stored: then leases are among them; if not, none are made any more."""
        self.state.is_logged = self.state.is_recording = is_logged

    def placed(self, id_: bytes, segment: int, offset: int, size: int) -> None:
        """A base record has been stored there: to be called for each, in order, and again when it moves."""
        logged.placed(self.state, JobId(id_), segment, offset, size)

    def segment_of(self, id_: bytes) -> int:
        """The segment with the newest base record of an id; 0: unknown, or not stored yet."""
        return logged.segment_of(self.state, JobId(id_))

    def knows(self, id_: bytes) -> bool:
        """True if a fresh log would have to speak of this id."""
        return logged.knows(self.state, JobId(id_))

    def restate(self, id_: bytes) -> list[Record]:
        """A base record and its increments: the present state of an id; [] if it is unknown."""
        return logged.restate(self.state, JobId(id_))

    def node_records(self) -> list[Record]:
        """Facts of the node that belong to no job; each segment begins with them."""
        return logged.node_records(self.state)

    def logged_ids(self) -> Iterator[bytes]:
        """Every id of which a fresh log must speak."""
        return logged.logged_ids(self.state)

    def queued_ids(self) -> list[bytes]:
        """What lies in the queues, in their order."""
        return [job.id for queue in self.state.queues.values() for job in queue.jobs]

    def live_bytes(self) -> int:
        """About how many bytes a fresh log would take."""
        return logged.live_bytes(self.state)

    def come_back(self, view: ClusterView) -> Iterator[None]:
        """This node was forgotten and is met again, under the new id of this view (B2.8).

        In bounded steps; in between it knows neither time nor peers, and takes no commands.
        """
        yield from returning.come_back(self.state, view)
        self._see(view)
        self._settle()

    def reset(self) -> None:
        """Forget all jobs and queues (DEBUG FLUSHALL, CLUSTER RESET)."""
        flushing.flush_all(self.state)

    def take_apart(self) -> Iterator[None]:
        """Give the memory of an engine that nobody needs any more back, in bounded steps."""
        return flushing.take_apart(self.state)

    def next_wakeup_ms(self) -> int | None:
        """ms at which `advance` should be called again, None: not before another input."""
        return self.state.agenda.next_at()

    def take_ready(self) -> Ready:
        """All that is to be stored, sent and answered since the last call."""
        state = self.state
        ready, state.ready = state.ready, Ready()
        state.unwritten_bytes = 0
        if ready.messages:
            state.batch_of.clear()
            state.said_in.clear()
        return ready

    def drop_messages(self) -> None:
        """What is to be sent isn't: it is too old, as if lost on the way."""
        state = self.state
        for each in (state.ready.messages, state.batch_of, state.said_in):
            each.clear()

    def heal(self) -> None:
        """Messages were lost although links stood: all that can be reached are healed with (B4.1)."""
        healing.heal_with(self.state, self.state.up)
        self._settle()

    def statistics(self) -> introspection.Statistics:
        """The figures of INFO."""
        return introspection.statistics(self.state)

    def set_limits(self, limits: Limits) -> None:
        """Configuration changed at run time."""
        self.state.limits = limits
        if memory.is_paging(self.state):
            logged.page_all(self.state)

    def set_shell_bytes(self, shell_bytes: int) -> None:
        """The shell's buffers, charged like jobs."""
        self.state.shell_bytes = shell_bytes
        logged.page_more(self.state)

    def shrink(self) -> None:
        """Keep no room for what has gone."""
        shrinking.shrink(self.state)

    def is_out_of_memory(self) -> bool:
        """Evict what may go; True if commands that need memory must be refused (OOM)."""
        return memory.is_out_of_memory(self.state)

    def is_safe_to_stop(self) -> bool:
        """True if this node leaves and nobody needs anything from it."""
        return leaving.is_safe_to_stop(self.state)

    def check(self) -> None:
        """Assert the invariants of one node; tests call it after every step."""
        introspection.check(self.state)

    def _settle(self) -> None:
        """What follows from an input: give what peers asked for, ask for what clients wait for."""
        state = self.state
        if state.offered:
            federation.offer(state)
        if state.hungry:
            federation.feed(state)
        if state.short:
            repair.note_new(state)


def _job_due(state: State, job: Job) -> None:
    if job.is_done:
        done_due(state, job)
    elif job.expires_at <= state.now_ms:
        _expire(state, job)
    elif job.state is JobState.ACTIVE:
        requeue.active_due(state, job)
    else:
        wake(state, job, job.expires_at)


def _expire(state: State, job: Job) -> None:
    """Its time is over: each copy goes by itself, without a word (M4, M12)."""
    wait = state.adding.get(job.id)
    if wait is not None:
        end_wait(state, wait)
        fail(state, wait.client, "NOREPL", REMOVED_TEXT)
    state.expired[job.id] = state.now_ms
    while len(state.expired) > state.limits.marks_max:
        state.expired.popitem(last=False)
        state.counts.marks_evicted += 1
    drop(state, job)


def _renew(state: State, client: ClientId, command: cmd.Renew) -> None:
    reply(state, client, [id_ for id_ in command.ids if not handling.renew_here(state, id_)])


def _flush(state: State, client: ClientId, _command: cmd.FlushAll) -> None:
    flushing.flush_all(state)
    reply(state, client, Status(b"OK"))


def _on_got_job(state: State, peer: NodeId, said: msg.GotJob) -> None:
    replication.on_got_job(state, peer, said)
    repair.copy_arrived(state, peer, said.id)


def _on_got_move(state: State, peer: NodeId, said: msg.GotMove) -> None:
    """A move has been answered; the ADDJOB of its job may wait for that (B6.9)."""
    job = moves.on_got_move(state, peer, said)
    wait = state.adding.get(job.id) if job is not None else None
    if wait is None:
        return
    if said.is_taken:
        external.moved(state, wait)
        drop(state, wait.job)
    else:
        external.move_refused(state, wait)


def _on_got_ack(state: State, peer: NodeId, said: msg.GotAck) -> None:
    acks.on_got_ack(state, peer, said)
    job = state.dummies.get(said.id)
    if job is not None:
        leaving.end_was_taken(state, peer, job)


def _on_unknown(state: State, peer: NodeId, said: msg.Unknown) -> None:
    acks.on_unknown(state, peer, said)
    job = state.jobs.get(said.id)
    if job is not None and not job.is_done:
        requeue.no_copy_at(state, job, peer)
        repair.note_short(state, job)


def _on_refused(state: State, peer: NodeId, said: msg.Refused) -> None:
    replication.on_refused(state, peer, said)
    repair.copy_arrived(state, peer, said.id)
    job = state.jobs.get(said.id)
    if job is not None:
        requeue.not_queued_at(state, job, peer)


def _on_purge(state: State, peer: NodeId, said: msg.Purge) -> None:
    """The order of a purge without the question for its count (M19), which a node gives in its own name."""
    if said.node == peer:
        acks.purge_here(state, said.queue, said.node, said.boot, said.seq)


def _queue_status(state: State, client: ClientId, command: cmd.QStat) -> None:
    if command.is_global:
        asking.global_queue_status(state, client, command)
    else:
        introspection.queue_status(state, client, command)


_Handler = Callable[[State, NodeId, Any], None]
_MESSAGES: Mapping[type[Any], _Handler] = {
    msg.ReplJob: replication.on_repl_job,
    msg.GotJob: _on_got_job,
    msg.Refused: _on_refused,
    msg.WillQueue: requeue.on_will_queue,
    msg.Have: requeue.on_have,
    msg.Unknown: _on_unknown,
    msg.Waiting: requeue.on_waiting,
    msg.Queued: requeue.on_queued,
    msg.Leased: requeue.on_leased,
    msg.Told: requeue.on_told,
    msg.SetAck: acks.on_set_ack,
    msg.GotAck: _on_got_ack,
    msg.DelJob: acks.on_del_job,
    msg.NeedJobs: federation.on_need_jobs,
    msg.YourJobs: federation.on_your_jobs,
    msg.Move: moves.on_move,
    msg.GotMove: _on_got_move,
    msg.AskMove: moves.on_ask_move,
    msg.Heal: healing.on_heal,
    msg.Walk: healing.on_walk,
    msg.Walked: healing.on_walked,
    msg.Pause: scanning.on_pause,
    msg.Purge: _on_purge,
    msg.Keep: leaving.on_keep,
    msg.KeepDummy: leaving.on_keep_dummy,
    msg.Kept: leaving.on_kept,
    msg.Question: asking.on_question,
    msg.Answer: asking.on_answer,
    msg.Publish: publishing.on_publish,
    msg.Subscribed: publishing.on_subscribed,
}
_COMMANDS: Mapping[type[Any], Callable[[State, ClientId, Any], None]] = {
    cmd.AddJob: replication.add_job,
    cmd.GetJob: get_jobs,
    cmd.AckJob: acks.ack_jobs,
    cmd.FastAck: acks.fast_ack_jobs,
    cmd.DelJob: acks.delete_jobs,
    cmd.Enqueue: asking.enqueue_jobs,
    cmd.Nack: asking.nack_jobs,
    cmd.Dequeue: asking.dequeue_jobs,
    cmd.Working: asking.working,
    cmd.Revive: asking.revive_jobs,
    cmd.CancelJob: asking.cancel_jobs,
    cmd.WaitJob: asking.wait_for_jobs,
    cmd.GlobalQLen: asking.global_queue_length,
    cmd.QPurge: asking.purge_queue,
    cmd.Show: introspection.show,
    cmd.QLen: introspection.queue_length,
    cmd.QStat: _queue_status,
    cmd.QPeek: scanning.queue_peek,
    cmd.QScan: scanning.queue_scan,
    cmd.JScan: scanning.job_scan,
    cmd.Pause: scanning.pause_queue,
    cmd.Publish: publishing.publish,
    cmd.Subscribe: publishing.subscribe,
    cmd.Unsubscribe: publishing.unsubscribe,
    cmd.NumSub: publishing.number_of_subscriptions,
    cmd.CountReached: publishing.count_reached,
    cmd.Attend: publishing.attend,
    cmd.CountAttending: asking.count_attending,
    cmd.Renew: _renew,
    cmd.FlushAll: _flush,
}
_DUE: Mapping[type[Any], Callable[[State, Any], None]] = {
    Job: _job_due,
    AddWait: replication.add_due,
    GetWait: get_timed_out,
    JobQueue: federation.queue_due,
    Tombstone: tombstone_due,
    Mark: mark_due,
    Absence: absence_due,
    Peer: moves.moves_due,
    Walk: healing.walk_due,
    Sweep: healing.sweep_due,
    Purge: asking.purge_due,
    Repair: repair.repair_due,
    Repairer: repair.repairer_due,
    Leaver: leaving.leaver_due,
    Pager: logged.pager_due,
    Parting: publishing.parting_due,
    Posts: publishing.posts_due,
    Trash: flushing.trash_due,
    Chore: chore_due,
    Returning: returning.returning_due,
    Inquiry: asking.inquiry_due,
    Tie: requeue.tie_due,
    idle.QueueSweep: idle.queue_sweep_due,
}
