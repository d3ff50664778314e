"""Debug administration: the DEBUG command: trouble on purpose, for tests.

Source: reference 1.18. `RESTART` and `CRASH-AND-RECOVER` start the same program with the same
arguments under the same process id.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from disque.core import memory
from disque.core.commands import FlushAll
from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.config_admin import rewrite
from disque.server.render import Verbatim
from disque.server.shell import Forward, Later

if TYPE_CHECKING:
    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

OK = Status(b"OK")
NOTHING = Verbatim(b"")
SLEEP_S_MAX = 3_600.0
DELAY_MS_MAX = 60_000  # before a restart


def debug(shell: Shell, client: Client, args: list[bytes]) -> Answer | Forward | Later:
    """`DEBUG FLUSHALL | LOADAOF | SLEEP s | ERROR text | RESTART [ms] | CRASH-AND-RECOVER [ms] | SEGFAULT …`."""
    word = args[0].lower()
    match word, len(args):
        case b"flushall", 1:
            return Forward(FlushAll())
        case b"sleep", 2:
            time.sleep(_sleep_s(args[1]))  # on purpose: it blocks the whole server, as in Disque
            return OK
        case b"error", 2:
            return Verbatim(encoder.error("", args[1].decode("utf-8", "surrogateescape")))
        case b"structsize", 1:
            return b"bits:64 base:%d job:%d queue:%d" % (
                memory.BASE_BYTES,
                memory.JOB_BYTES,
                memory.QUEUE_BYTES,
            )
        case b"loadaof", 1:
            return Later(shell.persistence.try_to_load)
        case b"segfault", 1:
            os.kill(os.getpid(), signal.SIGSEGV)
            return NOTHING
        case b"oom", 1:
            raise MemoryError("DEBUG OOM")
        case b"assert", 1:
            raise AssertionError("DEBUG ASSERT")
        case ((b"restart" | b"crash-and-recover"), (1 | 2)):
            return _restart(shell, client, args, is_crash=word == b"crash-and-recover")
    sub = args[0].decode("utf-8", "surrogateescape")
    raise CommandError(f"Unknown DEBUG subcommand or wrong number of arguments for '{sub}'")


def _restart(shell: Shell, client: Client, args: list[bytes], *, is_crash: bool) -> Later:
    """Start anew: after CONFIG REWRITE and an orderly end, or (is_crash) at once."""
    delay_ms = parse_int(args[1]) if len(args) == 2 else 0
    if delay_ms is None:
        raise CommandError("value is not an integer or out of range")
    delay_s = min(max(delay_ms, 0), DELAY_MS_MAX) / 1000
    if is_crash:
        time.sleep(delay_s)
        shell.start_again()
    return Later(lambda: _end(shell, client, delay_s))


async def _end(shell: Shell, client: Client, delay_s: float) -> Answer:
    if shell.config.config_file:
        try:
            await rewrite(shell)
        except CommandError as error:
            shell.events.event("warning", "restart-failed", reason=error)
            raise CommandError("failed to restart the server. Check server logs.") from None
    shell.events.event("notice", "restart-asked", addr=client.address)
    shell.restart_after_s = delay_s
    shell.stopping.set()
    client.close_soon()
    return NOTHING


def _sleep_s(raw: bytes) -> float:
    """As C's strtod: what is no number is 0; bounded."""
    try:
        seconds = float(raw)
    except ValueError:
        return 0.0
    return min(seconds, SLEEP_S_MAX) if seconds > 0 else 0.0
