"""Every bound and every timer of the core, with its unit and reason. The shell fills in what configuration sets."""

from __future__ import annotations

import attrs


@attrs.frozen
class Limits:
    """Times in ms unless the name says otherwise; source: merge-rules (M, B) and Disque's constants."""

    # Jobs
    retry_default_max_ms: int = 300_000  # default RETRY is TTL/10, at most this
    replicate_default: int = 3
    # an ADDJOB that waits asks one more node after 50, 100, 200 ms ... (later where answers take longer)
    extra_nodes_first_ms: int = 50
    refused_for_ms: int = 30_000  # a node that said REFUSED isn't asked again for so long (B3.7)

    default_max_deliveries: int = 0  # no limit
    default_dead_queue: bytes = b"dead-letters"
    maxmemory_bytes: int = 0  # 0: no limit
    is_eviction_on: bool = True  # maxmemory-policy acks
    repair_after_ms: int = 60_000  # copies of a failed holder are made again after this; 0: never
    # cluster-ask-timeout: how long members are waited for when a client asks
    ask_cluster_ms: int = 500
    # dispatched RETRY 0 jobs kept for SHOW and ACKJOB; the oldest go first
    spent_max: int = 100_000

    # Requeue (B1)
    ask_wait_ms: int = 500  # how long an asker waits for answers before it queues
    # holders ask in salted order, one step apart: clamp(RETRY/20, min, max)
    rank_step_min_ms: int = 50
    rank_step_max_ms: int = 500
    # a queued winner is asked ever more rarely, at most so rarely
    ask_backoff_max_ms: int = 600_000

    # Acks (B2, M6, M14, M15)
    setack_first_ms: int = 1_000
    setack_max_ms: int = 30_000
    # those who learn of an ack start by themselves 1 s + rank x this later
    setack_rank_ms: int = 200
    # longest time a frame may wait in a link (the link drops older ones)
    link_wait_max_ms: int = 15_000
    dummy_slack_ms: int = 60_000  # a dummy outlives the TTL in its id by this
    tombstones_max: int = 100_000
    marks_max: int = 100_000
    expired_kept_ms: int = 600_000  # for so long WAITJOB tells that a job's time was over
    expired_step: int = 5_000  # of those, forgotten at a time
    # dropped copies whose holders are remembered: some MB, for what is on its way or behind a cut
    absences_max: int = 10_000
    dummies_max: int = 100_000

    # Healing (B4)
    heal_batch: int = 500  # ids in a message of the walk
    heal_answer_ms: int = 2_000  # a batch unanswered for so long is said again
    # Between two walks to one peer there is time for as many ids again: flapping costs half the pace, a small store
    # is healed soon after the last flap.
    heal_pace: int = 20  # ids a ms
    heal_gap_min_ms: int = 1_000
    heal_gap_max_ms: int = 30_000

    # Federation
    needjobs_broadcast_first_ms: int = 2_000
    needjobs_broadcast_max_ms: int = 30_000
    needjobs_poll_first_ms: int = 250  # the same while nobody is blocked, only polls with NOHANG
    needjobs_poll_max_ms: int = 2_000
    needjobs_adhoc_first_ms: int = 25
    needjobs_adhoc_max_ms: int = 2_000
    needjobs_count_min: int = 5
    needjobs_count_max: int = 100
    responder_ms: int = 5_000  # a source counts as one for so long after its last jobs
    import_bucket_ms: int = 1_000
    import_window_ms: int = 5_000
    import_divisor_min_ms: int = 50

    # a peer that asked for jobs of a dry queue gets the next ones for so long
    wanted_ms: int = 30_000

    # RETRY 0 moves (B6)
    moves_open_max: int = 64  # open moves a peer
    # accepted ones that a peer hasn't closed, each in every record of the next: one that waits for its answer holds up
    # the closing of all behind it
    moves_taken_max: int = 1_000
    move_ask_first_ms: int = 1_000
    move_ask_max_ms: int = 30_000

    # Queues
    # a name is kept in memory and told peers; a topic's: see below
    queue_name_bytes_max: int = 4_096
    get_queues_max: int = 5_000  # of one GETJOB: each is made, and watched, at once
    queues_max: int = 1_000_000  # no client makes more; jobs from peers always find room
    blocked_max: int = 1_000_000  # GETJOBs and WAITJOBs that wait at a time
    queue_idle_max_ms: int = 300_000  # empty, unwatched, unpaused queues are freed after this
    pauses_max: int = 10_000  # queues whose cluster-wide pause flags are kept (M18)
    queue_sweep_ms: int = 1_000  # from one look at all queues to the next
    queue_sweep_count: int = 1_000  # how many at a time
    queue_slice_ms: int = 30  # ... and until the next of them: 3 % of a core for a million

    # Topics
    subscriptions_max: int = 2_000_000  # of one node; some 300 bytes each
    topic_name_bytes_max: int = 1_024  # a name costs a look-up for each length that a prefix has
    topics_told_max: int = 20_000  # names whose counts a node tells, and keeps of one peer
    # Messages that not all subscribers here have been told yet; beyond it all are told of the oldest at once
    posts_max: int = 1_000
    posts_bytes_max: int = 32 << 20
    told_a_turn: int = 250  # subscribers: some 15 us each until the socket has it

    # Work a turn
    # timers fired in one advance: some 30 us each, and what they say is spelled, too
    wakeups_a_turn: int = 250
    message_entries_max: int = 500  # entries of one bus message
    message_bytes_max: int = 1 << 20  # a message is closed when its bodies reach this
    # GETJOB, QPEEK and JSCAN give no more jobs once their bodies reach this: some 20 ms to put them in order
    answer_bytes_max: int = 16 << 20

    def retry_default_ms(self, ttl_ms: int) -> int:
        """RETRY of a job that was added without one: a tenth of its TTL in whole seconds, within bounds."""
        return max(min(ttl_ms // 10_000, self.retry_default_max_ms // 1_000), 1) * 1_000
