"""Dispatch: one command of a client, from its words to the broker or to an administrative function.

The order of checks is Disque's (reference 0.3): QUIT, name, number of words, authentication, state of the log,
memory; then the command itself. It knows who answers what, nothing of bytes or sockets. Here is also where
those look on who want to know of every command: MONITOR, SLOWLOG, LATENCY, INFO commandstats.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from disque.core.commands import AddJob, GetJob, WaitJob
from disque.core.parsing import parse
from disque.errors import CommandError
from disque.resp import encoder
from disque.server.admin import ADMIN
from disque.server.info import Usage
from disque.server.monitor import monitor_line, without_secrets
from disque.server.pacing import (
    forget,
    in_pieces,
    in_pieces_of_words,
    only_reads,
    unwritten,
)
from disque.server.pubsub import ALLOWED_TO_SUBSCRIBERS, has_subscriptions
from disque.server.render import render
from disque.server.shell import Forward, Later
from disque.server.table import ARGUMENTS_MAX, find_command

if TYPE_CHECKING:
    from disque.core.commands import Command
    from disque.server.connection import Client
    from disque.server.shell import Shell
    from disque.server.table import CommandSpec

OOM_TEXT = "command not allowed when used memory > 'maxmemory'."
LOADING_TEXT = "Disque is loading the dataset in memory"
# What a page in somebody's browser can make it say to any port; as Redis
_OF_HTTP = (b"post", b"host:")
# There are no transactions: what a client means to be one isn't done at all, and it is told why by the first error
MULTI_TEXT = (
    "unknown command 'MULTI': there are no transactions, so nothing is done up to EXEC or DISCARD; "
    "a pipeline does without (redis-py: pipeline(transaction=False))"
)
_BEFORE_AUTH = (b"auth", b"hello")  # HELLO with arguments sees to authentication itself


def execute(shell: Shell, client: Client, words: list[bytes], started_ns: int) -> int:
    """Carry out one command: it leaves an answer or an open slot with the client. Returns when it ended."""
    is_long = len(words) > ARGUMENTS_MAX + 1
    client.begin()
    try:
        if client.is_discarding:
            _discard(client, words[0].lower())
        spec = find_command(words, shell.renames)
        _check(shell, client, spec, words)
    except CommandError as error:
        _refuse(shell, client, words[0].lower(), error)
        if is_long:
            shell.nursery.start_soon(forget, words)
        return time.perf_counter_ns()
    client.last_command = spec.text
    if shell.monitors:
        _tell_monitors(shell, client, spec, words)
    try:
        if is_long:
            _carry_out_many(shell, client, spec, words)
        else:
            _carry_out(shell, client, spec, words[1:])
    except CommandError as error:
        client.answer(encoder.error(error.code, str(error)))
        if is_long:
            shell.nursery.start_soon(forget, words)
    ended_ns = time.perf_counter_ns()
    _account(shell, spec, words, (ended_ns - started_ns) // 1000)
    return ended_ns


def _refuse(shell: Shell, client: Client, name: bytes, error: CommandError) -> None:
    """Answer a command that isn't carried out; QUIT is no command, but has its answer."""
    if name == b"quit":
        client.answer(encoder.OK)
        client.close_soon()
    elif name in _OF_HTTP:
        reason = "a web browser may be abused to send commands"
        shell.events.seldom("warning", "possible-attack", addr=client.address, reason=reason)
        client.die()
    elif name == b"multi" and name not in shell.renames:
        client.is_discarding = True
        client.answer(encoder.error("ERR", MULTI_TEXT))
    else:
        client.answer(encoder.error(error.code, str(error)))


def _discard(client: Client, name: bytes) -> None:
    """Refuse what stands between MULTI and EXEC or DISCARD."""
    if name == b"exec":
        client.is_discarding = False
        raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
    if name == b"discard":
        client.is_discarding = False
    elif name != b"quit":
        raise CommandError("not done, for it stands behind a MULTI: EXEC or DISCARD ends that")


def overtakes(shell: Shell, words: list[bytes]) -> bool:
    """True if this command may run while ADDJOBs before it wait: it is an ADDJOB, too."""
    try:
        return find_command(words, shell.renames).name == b"addjob"
    except CommandError:
        return False


def _check(shell: Shell, client: Client, spec: CommandSpec, words: list[bytes]) -> None:
    if client.user is not None:
        client.user.check_command(spec.name, words[1:2])
    elif shell.config.requirepass:
        if spec.name not in _BEFORE_AUTH or (spec.name == b"hello" and len(words) == 1):
            raise CommandError("Authentication required.", "NOAUTH")
    if client.subscriber is not None and client.proto == 2:
        if spec.name not in ALLOWED_TO_SUBSCRIBERS and has_subscriptions(shell, client):
            raise CommandError(f"Can't execute '{spec.text}': this connection has subscriptions")
    turns, broker = shell.turns, shell.broker
    if (turns.is_loading or broker.is_returning) and b"loading" not in spec.flags:
        raise CommandError(LOADING_TEXT, "LOADING")
    if turns.trouble and (b"write" in spec.flags or spec.name == b"ping"):
        raise unwritten(shell)
    if spec.is_denied_oom and broker.engine.is_out_of_memory():
        raise CommandError(OOM_TEXT, "OOM")


def _carry_out(shell: Shell, client: Client, spec: CommandSpec, args: list[bytes]) -> None:
    admin = ADMIN.get(spec.name)
    if admin is None:
        _forward(shell, client, parse(spec.name, args))
        return
    answer = admin(shell, client, args)
    if isinstance(answer, Later):
        shell.finish_later(client, answer)
    elif isinstance(answer, Forward):
        _forward(shell, client, answer.command)
    else:
        client.answer(render(answer, client.proto))
        # CLUSTER RESET forgets jobs
        client.has_written |= spec.name == b"cluster"


def _carry_out_many(shell: Shell, client: Client, spec: CommandSpec, words: list[bytes]) -> None:
    """The same for more words than are read in one go: each piece of them is a command, too."""
    if shell.turns.trouble:
        raise unwritten(shell)
    first = words[1:2] if spec.name == b"pubsub" else []
    admin = ADMIN.get(spec.name)

    def read(some: list[bytes]) -> Command:
        answer = None if admin is None else admin(shell, client, some)
        return answer.command if isinstance(answer, Forward) else parse(spec.name, first + some)

    later = in_pieces_of_words(shell, client, words, 1 + len(first), read)
    shell.finish_later(client, later)


def _forward(shell: Shell, client: Client, command: Command) -> None:
    """Give a command to the broker; its reply is there at once or, if the client must wait, comes later."""
    later = in_pieces(shell, client, command)
    if later is None and client.user is not None:
        client.user.check_names(command, shell.broker.engine.queue_of)
    is_read = only_reads(command)
    if shell.turns.trouble and not is_read:
        raise unwritten(shell)
    if later is not None:
        shell.finish_later(client, later, is_read=is_read)
        return
    id_, broker = shell.clients.new_id(), shell.broker
    if broker.command(id_, command):
        client.answer(render(broker.take_reply(id_), client.proto))
        client.has_written |= not is_read
        return
    slot = shell.clients.open_slot(client, id_)
    slot.is_read = is_read
    client.wait_for(
        slot,
        is_alone=not isinstance(command, AddJob),
        is_abandonable=isinstance(command, GetJob | WaitJob),
    )


def _account(shell: Shell, spec: CommandSpec, words: list[bytes], usec: int) -> None:
    figures = shell.figures
    figures.commands_processed += 1
    usage = figures.usages.get(spec.name)
    if usage is None:
        usage = figures.usages[spec.name] = Usage()
    usage.calls += 1
    usage.usec += usec
    if 0 <= shell.slowlog.threshold_us <= usec:
        shell.slowlog.note(int(time.time()), usec, without_secrets(spec.name, words))
    if shell.latency.threshold_ms:
        shell.latency.add("fast-command" if spec.is_fast else "command", usec // 1000)


def _tell_monitors(shell: Shell, client: Client, spec: CommandSpec, words: list[bytes]) -> None:
    line = monitor_line(time.time_ns(), client.address, without_secrets(spec.name, words))
    for monitor in list(shell.monitors.values()):
        if monitor.is_closing:
            del shell.monitors[monitor.id]
        else:
            monitor.tell(line)
            shell.turns.touch(monitor)
