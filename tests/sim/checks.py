"""Checks: the invariants of merge-rules.md section C as small functions over plain values. Each returns what is wrong.

Nothing here reads a node: `watch` takes snapshots and calls these. So each check has a test that plants a violation.
A finding is a `Violation`; rules are named as in merge-rules.md. Times are ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import attrs

from tests.sim.ledger import Life

LIVE = ("waiting", "active", "queued", "moving")
ENDED = ("done", "dummy", "tombstone")
KINDS = ("none", *LIVE, *ENDED)
AT_ONCE_MAX = 2  # so often the end of a turn may show more than was known when a repair began
STEP_IN_MS = 5000  # a holder leaves the repair of a job so long to the one before it


@attrs.frozen
class Violation:
    """A rule that was broken."""

    rule: str
    job: bytes | None
    text: str


@attrs.define(eq=False)
class Copy:
    """What one node knows of one job, at the end of a turn. Node ids are strings; times are the node's own."""

    kind: str  # one of KINDS
    holders: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    reason: int = 0
    dispatches: Mapping[str, int] = attrs.Factory(dict)
    nacks: Mapping[str, int] = attrs.Factory(dict)
    burials: int = 0
    expires_at: int = 0
    not_before: int = 0
    lease_end: int = 0  # of leases that nothing covers
    retry_ms: int = 0
    replicate: int = 0
    has_body: bool = False
    is_spent: bool = False  # RETRY 0: dispatched or dequeued here, never queued again

    @property
    def is_live(self) -> bool:
        """A copy whose job isn't over here."""
        return self.kind in LIVE

    @property
    def may_be_offered(self) -> bool:
        """Live, and neither spent (RETRY 0, handed out) nor on its way to another owner."""
        return self.is_live and self.kind != "moving" and not self.is_spent

    @property
    def is_ended(self) -> bool:
        """The end of the job is known here."""
        return self.kind in ENDED


NONE = Copy("none")
Found: TypeAlias = "Violation | None"


def s1_done_stays_done(job: bytes, before: Copy, after: Copy) -> Found:
    """A node that stored done never has it live again while it keeps entry or tombstone."""
    if before.is_ended and after.is_live:
        return Violation("S1", job, f"{before.kind} became {after.kind}")
    return None


def s2_told_is_true(
    job: bytes, told: Collection[str], knew: Collection[str], wiped: Collection[str]
) -> Found:
    """n in T means that n has stored done, or was wiped since."""
    liars = [node for node in told if node not in knew and node not in wiped]
    if liars:
        return Violation("S2", job, f"T names {liars}, which never stored the end")
    return None


def s3_settled_is_over(job: bytes, settled_at: int | None, what: str, *, is_excused: bool) -> Found:
    """Without wipes and FORGET nobody dispatches a settled job, and no live copy of it exists."""
    if settled_at is None or is_excused:
        return None
    return Violation("S3", job, f"settled at {settled_at} ms, but {what}")


def s4_receiver_is_holder(
    job: bytes, holders: Collection[str], receivers: Collection[str], what: str
) -> Found:
    """Before a copy leaves, its receiver is in H of the copy that it comes from."""
    missing = [node for node in receivers if node not in holders]
    if missing:
        return Violation("S4", job, f"{what} sent to {missing}, H is {sorted(holders)}")
    return None


def s5_at_most_once(job: bytes, retry_ms: int, deliveries: int) -> Found:
    """RETRY 0: at most one dispatch in the whole world."""
    if retry_ms == 0 and deliveries > 1:
        return Violation("S5", job, f"RETRY 0 dispatched {deliveries} times")
    return None


def s5_one_owner(job: bytes, copies: Mapping[str, Copy]) -> Found:
    """RETRY 0: at most one node may dispatch it; what moves or is spent can't be dispatched."""
    owners = [
        n for n, c in copies.items() if c.kind in ("active", "queued", "waiting") and not c.is_spent
    ]
    if len(owners) > 1:
        return Violation("S5", job, f"RETRY 0 can be dispatched by {owners}")
    return None


def s6_some_copy_lives(life: Life, live: Collection[str], now: int, slack_ms: int) -> Found:
    """RETRY > 0 and answered ok, not over, not expired, not wiped away: some live copy has its body."""
    if life.ok_at is None or not life.retry_ms or live or life.knew or life.lost_at is not None:
        return None
    if life.ordered("deljob", "fastack") or now >= life.added_at + life.command.ttl_ms - slack_ms:
        return None
    return Violation(
        "S6", life.id, f"answered ok at {life.ok_at} ms, no node has it and none was wiped"
    )


def s7_copies_at_reply(
    job: bytes, promised: int, holding: Collection[str], wiped: Collection[str]
) -> Found:
    """At the ok of an explicit REPLICATE that many nodes have stored the job; wipes of some are excused."""
    if len(dict.fromkeys([*holding, *wiped])) < promised:
        return Violation(
            "S7", job, f"REPLICATE {promised} answered ok, stored by {sorted(holding)} only"
        )
    return None


def s8_no_contradiction(job: bytes, ok_at: int | None, *, is_norepl: bool) -> Found:
    """No NOREPL, as reply or as reason of done, for a job that was answered ok."""
    if ok_at is not None and is_norepl:
        return Violation("S8", job, f"answered ok at {ok_at} ms, yet NOREPL")
    return None


def s9_may_be_queued(job: bytes, copy: Copy, now: int) -> Found:
    """Queued means: delay over, no live uncovered lease, RETRY 0 not spent (M10)."""
    if copy.kind != "queued":
        return None
    if copy.not_before > now:
        return Violation("S9", job, f"queued {copy.not_before - now} ms before its delay ends")
    if copy.lease_end > now:
        return Violation("S9", job, f"queued beside a lease of {copy.lease_end - now} ms more")
    if copy.is_spent:
        return Violation("S9", job, "queued although it is spent")
    return None


def s10_not_early(job: bytes, life: Life, now: int) -> Found:
    """No dispatch before the end of DELAY, unless somebody said ENQUEUE (or NACK)."""
    due = life.added_at + life.command.delay_ms
    if now < due and not life.ordered("enqueue", "nack"):
        return Violation("S10", job, f"dispatched {due - now} ms before its delay ends")
    return None


def s10_not_late(job: bytes, life: Life, now: int, slack_ms: int) -> Found:
    """No dispatch after expiry, give or take the waits of links."""
    end = life.added_at + life.command.ttl_ms
    if now > end + slack_ms:
        return Violation("S10", job, f"dispatched {now - end} ms after its expiry")
    return None


def s11_lease_is_bounded(job: bytes, copy: Copy, now: int, nack_delay_ms: int = 0) -> Found:
    """No lease ends later than now + RETRY, or that and the DELAY of a NACK."""
    if copy.is_live and copy.lease_end > now + copy.retry_ms + nack_delay_ms:
        return Violation(
            "S11", job, f"a lease of {copy.lease_end - now} ms, RETRY is {copy.retry_ms}"
        )
    return None


def s11_expiry_falls(job: bytes, before: Copy, after: Copy) -> Found:
    """Expiry never rises."""
    if before.is_live and after.is_live and after.expires_at > before.expires_at:
        return Violation("S11", job, f"expiry rose by {after.expires_at - before.expires_at} ms")
    return None


def s11_expiry_is_kept(job: bytes, copy: Copy, life: Life, now: int, slack_ms: int) -> Found:
    """A copy that arrives brings what is left of its life, give or take the waits of links (M12)."""
    most = life.added_at + life.command.ttl_ms + slack_ms
    if copy.is_live and copy.expires_at > most:
        return Violation("S11", job, f"lives {copy.expires_at - most} ms longer than its TTL")
    return None


def s12_forgotten_stay(before: Collection[str], after: Collection[str]) -> Found:
    """Whom a node has forgotten it never lists again (M16)."""
    back = [node for node in before if node not in after]
    if back:
        return Violation("S12", None, f"forgotten nodes {back} are known again")
    return None


def b28_comes_back_empty(live: Collection[bytes]) -> Found:
    """A forgotten node that is met again has no live copy: all wait till the cluster has spoken (B2.8)."""
    if live:
        return Violation("B2.8", next(iter(live)), f"came back with {len(live)} live jobs")
    return None


def m19_cancelled_by_order(life: Life, purged_at: Collection[int], slack_ms: int) -> Found:
    """A job is cancelled because a client said so, or by a purge that met it (M19)."""
    if life.ordered("cancel", "whisper"):
        return None
    if any(at >= life.added_at - slack_ms for at in purged_at):
        return None
    return Violation(
        "M19", life.id, "cancelled, but nobody ordered it, nor a purge of its queue since"
    )


def q9_counters_are_true(job: bytes, copy: Copy, deliveries: int, nacks: int) -> Found:
    """No more dispatches and NACKs are known than there were (Q9)."""
    for name, known, true in (
        ("dispatches", copy.dispatches, deliveries),
        ("NACKs", copy.nacks, nacks),
    ):
        if sum(known.values()) > true:
            return Violation("Q9", job, f"{sum(known.values())} {name} known, there were {true}")
    return None


def b3_one_leads(job: bytes, leader: str, other: str, times: int) -> Found:
    """Of two holders that know of each other the first in salted order repairs, the other waits 5 s (B3.5)."""
    if times > AT_ONCE_MAX:
        text = f"{leader} and {other} both make copies at once, for the {times}. time in this run"
        return Violation("B3", job, text)
    return None


def s12_facts_rise(job: bytes, before: Copy, after: Copy) -> Found:
    """H, T, counters, dead and done only rise at a node that keeps its entry."""
    if before.kind == "none" or after.kind == "none" or after.kind == "tombstone":
        return None
    if not set(before.holders) <= set(after.holders):
        return Violation("S12", job, f"H fell from {before.holders} to {after.holders}")
    if before.kind == "tombstone":
        return None
    if not set(before.told) <= set(after.told):
        return Violation("S12", job, f"T fell from {before.told} to {after.told}")
    if after.reason < before.reason:
        return Violation("S12", job, f"reason fell from {before.reason} to {after.reason}")
    if before.is_live and after.is_live:
        return _counters_rise(job, before, after)
    return None


def _counters_rise(job: bytes, before: Copy, after: Copy) -> Found:
    for name, old, new in (
        ("dispatches", before.dispatches, after.dispatches),
        ("nacks", before.nacks, after.nacks),
    ):
        if any(new.get(node, 0) < count for node, count in old.items()):
            return Violation("S12", job, f"{name} fell from {dict(old)} to {dict(new)}")
    if after.burials < before.burials:
        return Violation("S12", job, f"burials fell from {before.burials} to {after.burials}")
    return None


def s14_done_frees_body(job: bytes, copy: Copy) -> Found:
    """A done entry has no body."""
    if copy.kind in ("done", "dummy") and copy.has_body:
        return Violation("S14", job, "done, but its body is kept")
    return None


def s15_claims_are_stored(
    job: bytes, claim: str, stored: Collection[str], needed: Collection[str]
) -> Found:
    """What a Ready claims to the world is in the log by then: one of these kinds of record about this job."""
    if any(kind in stored for kind in needed):
        return None
    return Violation(
        "S15",
        job,
        f"{claim} leaves without a record of {sorted(needed)}; there are {sorted(stored)}",
    )


def calm_delivered_once(job: bytes, before: int | None, now: int, life: Life) -> Found:
    """Without any fault nobody is given a leased job again before RETRY has passed, but by NACK, ENQUEUE, DEQUEUE."""
    if (
        before is None
        or not life.retry_ms
        or life.ordered("nack", "enqueue", "dequeue", "working", "deljob")
    ):
        return None
    if now - before < life.retry_ms * 9 // 10:
        return Violation(
            "CALM",
            job,
            f"RETRY {life.retry_ms}, handed out again after {now - before} ms, no fault near",
        )
    return None


def answered_in_time(
    job: bytes | None, kind: str, waited_ms: int, timeout_ms: int, slack_ms: int
) -> Found:
    """ADDJOB and GETJOB are answered when their time-out ends, if their node is alive."""
    if waited_ms > timeout_ms + slack_ms:
        return Violation(
            "TIMEOUT",
            job,
            f"{kind} with a time-out of {timeout_ms} ms unanswered for {waited_ms} ms",
        )
    return None


def q8_safe_means_safe(job: bytes, copy: Copy, node: str, *, was_safe: bool) -> Found:
    """A node that left and said it may stop has no last copy of anything."""
    if was_safe and copy.is_live:
        return Violation(
            "Q8", job, f"{node} said that it is safe to stop, but has the last copy, {copy.kind}"
        )
    return None


def s13_limit_holds(job: bytes, life: Life, limit: int, own_queue: int) -> Found:
    """A job with a delivery limit is handed out from its own queue so often at most, on each side of a cut."""
    if life.command.max_deliveries and own_queue > limit and not life.ordered("revive"):
        return Violation("S13", job, f"{own_queue} deliveries from its own queue, {limit} allowed")
    return None


# At quiescence


def q1_over_is_forgotten(node: str, left: Mapping[str, Collection[bytes]]) -> list[Violation]:
    """After the drain no node has jobs, unsettled ends, dummies, marks or (once aged) tombstones."""
    return [
        Violation("Q1", next(iter(ids)), f"{node} still has {len(ids)} {what}")
        for what, ids in left.items()
        if ids
    ]


def q2_holders_agree(job: bytes, copies: Mapping[str, Copy]) -> Found:
    """Holders of a live job agree on H and counters; RETRY 0 has one owner, and nothing to agree on."""
    seen: dict[object, str] = {}
    for node, copy in copies.items():
        if copy.is_live and copy.retry_ms:
            counters = [tuple(sorted(counts.items())) for counts in (copy.dispatches, copy.nacks)]
            seen.setdefault((copy.holders, *counters), node)
    if len(seen) > 1:
        return Violation(
            "Q2",
            job,
            "holders disagree: " + "; ".join(f"{n}: {facts}" for facts, n in seen.items()),
        )
    return None


def q3_one_queued(job: bytes, copies: Mapping[str, Copy]) -> Found:
    """At most one queued copy of a job."""
    queued = [node for node, copy in copies.items() if copy.kind == "queued"]
    if len(queued) > 1:
        return Violation("Q3", job, f"queued at {queued}")
    return None


def q4_copies_made_again(
    life: Life, now: int, willing: int, copies: Mapping[str, Copy], slack_ms: int
) -> Found:
    """Repair has brought each live job with RETRY > 0 to REPLICATE copies, or one at each willing node.

    For the end of a job's life none are made, and its copies go one by one (B3.2).
    """
    if now >= life.added_at + life.command.ttl_ms - slack_ms:
        return None
    live = {node: copy.replicate for node, copy in copies.items() if copy.is_live and copy.retry_ms}
    if len(live) < min(willing, max(live.values(), default=0)):
        return Violation(
            "Q4", life.id, f"{willing} nodes are willing, copies and their REPLICATE: {live}"
        )
    return None


def q5_quiet(messages: int, allowed: int, span_ms: int) -> Found:
    """Job messages die down when there is nothing to say."""
    if messages > allowed:
        return Violation(
            "Q5", None, f"{messages} job messages in {span_ms} quiet ms, {allowed} allowed"
        )
    return None


def q6_not_lost(life: Life, now: int, *, is_in_doubt: bool = False) -> Found:
    """Each ok job was delivered, or is acked, cancelled, expired; or a crash took its last copy.

    RETRY 0 is lost with any holder, by DEQUEUE, or in doubt on its way to a node that restarted.
    """
    if life.ok_at is None or life.deliveries or life.lost_at is not None:
        return None
    if life.knew or life.ordered("deljob", "fastack") or now >= life.added_at + life.command.ttl_ms:
        return None
    if not life.retry_ms and (is_in_doubt or life.wiped or life.ordered("dequeue")):
        return None
    return Violation(
        "Q6",
        life.id,
        f"answered ok at {life.ok_at} ms by n{life.node}, never delivered, no crash explains it",
    )


def q7_log_is_memory(job: bytes, before: Copy, after: Copy, now: int) -> Found:
    """A node that reads its log knows of a job what it knew when the log was written (Q7)."""
    if before.kind == "none" or before.expires_at <= now:
        return None
    wrong = ""
    if before.is_live != after.is_live or before.is_ended != after.is_ended:
        wrong = f"{before.kind} became {after.kind}"
    elif before.is_live and not set(before.holders) <= set(after.holders):
        wrong = f"H was {before.holders}, is {after.holders}"
    elif before.is_live and before.burials != after.burials:
        wrong = f"burials were {before.burials}, are {after.burials}"
    elif before.is_ended and before.reason != after.reason:
        wrong = f"the reason was {before.reason}, is {after.reason}"
    elif not before.retry_ms and before.dispatches and before.is_live and after.may_be_offered:
        wrong = "RETRY 0 and dispatched, may be offered again"
    elif before.kind == "moving" and after.may_be_offered:
        wrong = "handed to another owner, may be offered again"
    return Violation("Q7", job, f"by the log {wrong}") if wrong else None


def q7_is_intact(node: str, why_not: str, *, is_intact: bool) -> Found:
    """After a crash that took nothing that counted, a node knows that its log is whole."""
    if is_intact:
        return None
    return Violation("Q7", None, f"{node} takes its log for incomplete: {why_not or 'another id'}")


def q7_log_is_small(node: str, total: int, live: int, segment_bytes: int, heads: int) -> Found:
    """The log takes at most 2.5 times its live bytes and two segments, each with its head."""
    if total > 5 * live // 2 + 2 * segment_bytes + heads:
        return Violation("Q7", None, f"{node}'s log of {total} bytes holds {live} live ones")
    return None


def q10_no_late_delivery(life: Life, now: int, grace_ms: int) -> Found:
    """When all is healed nobody is given a job whose end some living node has known for a while."""
    if not life.done_at or life.ordered("deljob"):
        return None
    known_for = now - min(life.done_at.values())
    if known_for > grace_ms:
        return Violation(
            "Q10", life.id, f"delivered {known_for} ms after its end was stored, all healed"
        )
    return None
