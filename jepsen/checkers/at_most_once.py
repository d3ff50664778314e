"""At most once: a job with RETRY 0 is delivered once or never, and never is no licence."""

from __future__ import annotations

from jepsen.checkers import excuses
from jepsen.checkers.base import Finding, Result
from jepsen.checkers.lives import Index, Life
from jepsen.checkers.loss import holders_now
from jepsen.history import INFO

NAME = "at-most-once"
# excuses that are a client's wish: expired, ended
ORDERED = ("E2", "E6")
CLAIM = "RETRY 0 REPLICATE 1: delivered once or never; never only if a fault or a lost answer explains it."


def check(index: Index) -> Result | None:
    """Two hand-outs are wrong whatever happened; none at all is wrong without an excuse (C3, C4)."""
    lives = [life for life in index.lives.values() if not life.retry]
    if not lives:
        return None
    findings: list[Finding] = []
    excused: dict[str, list[Life]] = {}
    waiting = 0
    for life in lives:
        if len(life.deliveries) > 1:
            findings.append(_twice(life))
        elif life.is_ok and not life.deliveries:
            if code := excuses.excuse(index, life):
                excused.setdefault(code, []).append(life)
            elif index.meta.drained is not True:
                waiting += 1
            else:
                findings.append(_dropped(index, life))
    # a lost answer had no more jobs than it was asked for
    taken = sum([int(ask.invoke.value["count"]) for ask in index.asks if ask.type == INFO])
    more = excused.get(excuses.LOST_ANSWER, [])[taken:]
    if index.meta.drained is True:
        findings += [_dropped(index, life) for life in more]
    else:
        waiting += len(more)
    notes = [
        f"{len(found)} excused by {code}: {excuses.TITLES[code]}" for code, found in excused.items()
    ]
    share = sum(len(found) for code, found in excused.items() if code not in ORDERED)
    is_vague = share * 100 > sum(life.is_ok for life in lives) * excuses.EXCUSED_PERCENT
    if is_vague:
        notes.append(f"{share} jobs excused by faults are too many to tell anything")
    if waiting:
        notes.append(f"{waiting} jobs were still missing when the run ended undrained")
    numbers = {
        "jobs": len(lives),
        "delivered": sum(bool(life.deliveries) for life in lives),
        "excused": sum(map(len, excused.values())),
    }
    valid = False if findings else (None if waiting or is_vague else True)
    return Result(NAME, valid, CLAIM, tuple(findings), numbers, tuple(notes))


def _twice(life: Life) -> Finding:
    first, second = life.deliveries[:2]
    text = (
        f"RETRY 0, delivered {len(life.deliveries)} times: by {first.node} at {first.at / 1e9:.3f} s, "
        f"by {second.node} at {second.at / 1e9:.3f} s"
    )
    return Finding(NAME, "delivered-twice", text, life.job, life.v, second.at)


def _dropped(index: Index, life: Life) -> Finding:
    where = holders_now(index, life)
    text = f"RETRY 0, never delivered, and nothing explains it; on {where or 'no node'} at the end"
    return Finding(NAME, "dropped", text, life.job, life.v, life.ended_at)
