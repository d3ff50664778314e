"""Seeds: inputs that make sense, from which the odd ones are made."""

from __future__ import annotations

import random
from typing import Final

from cluster.frame import encode_frame
from cluster.handshake import AcceptorHandshake, DialerHandshake, Identity, refusal
from cluster.nodeid import NodeId
from tests.unit.core.builders import job_id

SECRET: Final = b"fuzz"
DIALER: Final = Identity(NodeId("d" * 40), 3, 2, "", 7711, 17711)
ACCEPTOR: Final = Identity(NodeId("a" * 40), 9, 9, "::1", 7712, 17712)


def command(*words: bytes) -> bytes:
    """A command as clients send it."""
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))


_ID: Final = bytes(job_id())
_WORDS: Final = b"""
    ADDJOB GETJOB ACKJOB FASTACK NACK WORKING SHOW QLEN QPEEK QSTAT QSCAN JSCAN ENQUEUE DEQUEUE DELJOB PAUSE REVIVE
    CANCELJOB WAITJOB QPURGE GLOBALQLEN PUBLISH SUBSCRIBE PSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE PUBSUB HELLO AUTH PING
    INFO TIME COMMAND SLOWLOG LATENCY MONITOR FROM NOHANG COUNT TIMEOUT REPLICATE RETRY DELAY TTL MAXLEN ASYNC
    PRIORITY MAXDELIVERIES DEADLETTER WITHCOUNTERS WITHNODES GLOBAL NUMSUB GET LEN SETNAME BCAST in out all none state q
"""
_SIGNS: Final = (b"*", b"$", b"\r\n", b" ", b'"', b"*2\r\n", b"$4\r\n", b"3")
RESP_WORDS: Final = (*_WORDS.split(), *_SIGNS, _ID)
RESP: Final = (
    command(b"ADDJOB", b"q", b"body", b"10"),
    command(b"ADDJOB", b"q", b"b", b"5", b"REPLICATE", b"2", b"RETRY", b"1", b"TTL", b"9", b"DELAY", b"3"),
    command(b"ADDJOB", b"q", b"b", b"5", b"ASYNC", b"PRIORITY", b"9", b"MAXDELIVERIES", b"1", b"DEADLETTER", b"d"),
    command(b"GETJOB", b"NOHANG", b"COUNT", b"2", b"WITHCOUNTERS", b"FROM", b"q", b"r"),
    command(b"GETJOB", b"TIMEOUT", b"5", b"FROM", b"none"),
    *[command(word, _ID) for word in (b"ACKJOB", b"NACK", b"SHOW", b"WORKING", b"FASTACK", b"ENQUEUE", b"DELJOB")],
    command(b"NACK", _ID, b"DELAY", b"0.5"),
    command(b"WAITJOB", _ID, b"TIMEOUT", b"5"),
    command(b"JSCAN", b"COUNT", b"5", b"QUEUE", b"q", b"STATE", b"queued", b"REPLY", b"all"),
    command(b"QSCAN", b"BUSYLOOP", b"MINLEN", b"1"),
    command(b"HELLO", b"3", b"SETNAME", b"me"),
    command(b"SUBSCRIBE", b"q"),
    command(b"PSUBSCRIBE", b"q*"),
    command(b"PUBLISH", b"q", b"hello"),
    command(b"QPEEK", b"q", b"-5"),
    command(b"INFO", b"all"),
    command(b"CONFIG", b"GET", b"*"),
    command(b"SLOWLOG", b"GET", b"5"),
    command(b"PAUSE", b"q", b"all", b"bcast"),
    b"PING\r\n",
    b"ADDJOB q 'a b' 0 retry 5\r\n",
    b"MONITOR\r\n",
)  # fmt: skip

STOMP_WORDS: Final = (
    *[
        b"%b\n" % word
        for word in b"""CONNECT SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT destination:/queue/q
        destination:/topic/t id:0 ack:client receipt:r content-length:3 transaction:t accept-version:1.2 heart-beat:0,0
        """.split()
    ],
    *(b"\\c", b"\\x", b":", b"\n\n", b"\n\0", b"\0"),
)
CONNECTS: Final = (
    b"CONNECT\n\n\0",
    b"STOMP\naccept-version:1.0,1.1\nheart-beat:5,5\n\n\0",
    b"CONNECT\naccept-version:1.2\nlogin:guest\npasscode:x\n\n\0",
)
STOMP: Final = (
    *CONNECTS,
    b"SEND\ndestination:/queue/q\nreceipt:1\nretry:5\npriority:3\n\nbody\0",
    b"SEND\ndestination:/queue/q\ncontent-length:3\n\na\0b\0",
    b"SEND\ndestination:/topic/t\nx\\c:y\n\nbody\0",
    b"SEND\ndestination:/queue/q\nreply-to:/temp-queue/x\n\nbody\0",
    b"SEND\ndestination:/control/count-msgs/queue/q\nreceipt:2\n\n\0",
    b"SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual\nprefetch:2\n\n\0",
    b"SUBSCRIBE\nid:1\ndestination:/topic/t*\n\n\0",
    b"SUBSCRIBE\nid:2\ndestination:/temp-queue/x\n\n\0",
    b"UNSUBSCRIBE\nid:0\n\n\0",
    b"ACK\nid:%b\n\n\0" % _ID,
    b"NACK\nid:%b\nmessage-id:%b\nsubscription:0\n\n\0" % (_ID, _ID),
    b"BEGIN\ntransaction:t\n\n\0SEND\ntransaction:t\ndestination:/queue/q\n\nx\0COMMIT\ntransaction:t\nreceipt:3\n\n\0",
    b"ABORT\ntransaction:t\n\n\0",
    b"DISCONNECT\nreceipt:4\n\n\0",
    b"\r\n\n",
)  # fmt: skip


def handshakes() -> tuple[bytes, ...]:
    """Bodies of a whole handshake, and a refusal."""
    dice = random.Random(0)
    dialer = DialerHandshake(
        own=DIALER, secret=SECRET, nonce=dice.randbytes(32), expected=ACCEPTOR.id, is_meet=False
    )
    acceptor = AcceptorHandshake(own=ACCEPTOR, secret=SECRET, nonce=dice.randbytes(32))
    hello = dialer.start()
    challenge = acceptor.receive(hello)
    assert challenge is not None
    proof = dialer.receive(challenge)
    assert proof is not None
    acceptor.receive(proof)
    return hello, challenge, proof, acceptor.accept(), refusal("no")


def framed(bodies: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The same with their lengths."""
    return tuple(map(encode_frame, bodies))
