"""Short runs that once failed, by what was wrong then."""

from __future__ import annotations

import pytest

from tests.sim.run import run_seed

ONCE_FAILED = {
    58: "a job that was queued and given on in one turn lay queued nowhere: QUEUED overtook YOURJOBS",
    162: "a tombstone went at the job's expiry, a frame that left before came later",
    255: "checker: the job was on its way between nodes while others asked",
    280: "checker: copies counted by an ADDJOB that was answered by a hand-out",
    384: "simulator: one living node of two never heard that a pause was over",
    440: "checker: a default REPLICATE at a leaving node promises one copy less",
    971: "checker: a NACK with DELAY of what was never handed out means nothing",
    502: "checker: the same, for a job that was handed out",
    3039: "checker: RETRY 0, acked at a node to which it only moved later",
    3222: "simulator: what a node lost when it was called back by a peer went unnoticed",
    3738: "checker: an ack in the very instant of the look that counted its copies",
    4065: "an answered ADDJOB ASYNC at a leaving node became NOREPL by DELJOB",
    7022: "simulator: a purge that ended a copy in quarantine went unnoticed",
    7448: "simulator: a job that was added in the turn in which its node came back",
    9510: "simulator: a whisper ended a dummy by ends that nobody had stored",
    6392: "RETRY 0, acked where it wasn't known who owned it: the asked one had given it on, and settled",
    8251: "checker: copies that expired a few ms apart counted as too few",
    40589: "simulator: a whisper about a dummy reached a slow node that had forgotten it meanwhile",
    5358: "simulator: a node that had left still counted as one that knew of an ack",
}
WITH_LOG = {
    396: "checker: a client that went away while its node was about to crash",
    411: "checker: RETRY 0 in doubt under an id that its ADDJOB never told",
    479: "simulator: a node that died before it took a connection in left its dialer waiting for ever",
    645: "a job of one copy was offered before the node had reached whoever knew of its ack",
    1114: "simulator: a whisper ended a job while its ADDJOB's answer was on its way",
    902: "an answer to a node that had just restarted went to its former life",
    596: "a copy that was to be held by peers alone was none after a restart, and was then handed over",
    1009: "checker: copies of nodes that were never all there at once",
    3040: "checker: an end that was undone by a crash before it was written",
    2183: "checker: an end that was undone by a crash while its sync failed",
    1580: "checker: an end that was seen before the delivery of the turn before it",
    2030: "checker: an end that expired while its log was written",
    729: "checker: the same, told by an answer",
    846: "simulator: a whisper brought a copy whose body lay in the log alone",
    1454: "simulator: the same",
    2041: "simulator: the same",
    3033: "simulator: the same",
    1722: "an ack ended at a node that had joined during a cut and hadn't met the holder",
    1238: "no claims came back from the log as no holders, a tuple: TypeError",
    1499: "a store that isn't whole queued jobs of one holder before any peer was reached",
    1049: "simulator: what was paged out before it was seen had no life, so no orders",
    1395: "simulator: the same",
    16: "a tombstone that a compacted log says again was booked twice: KeyError",
}


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_run_that_once_failed_is_clean(seed: int) -> None:
    result = run_seed(seed, events_wanted=5_000)
    assert result.violation is None, result.story


@pytest.mark.parametrize("seed", WITH_LOG)
def test_a_run_with_logs_that_once_failed_is_clean(seed: int) -> None:
    result = run_seed(seed, events_wanted=5_000, has_log=True)
    assert result.violation is None, result.story
