"""Page: the node's part of its web page: the port, and a process for whoever comes.

The page itself (disque.web) is a process of its own, started at the first connection and anew whenever there is one
while none runs: what a page costs, imports included, never costs the node's loop. It is kept on a socket pair, the
leash (see disque.web.leash): down go settings, up come ends of socket pairs, which are served as connections of
clients. The node knows nothing of HTTP.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import disque
from disque.errors import ConfigError
from disque.server.configfile import ENVIRONMENT_PREFIX
from disque.server.sockets import listen
from disque.server.visits import Visits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from disque.server.config import Config
    from disque.server.dialect import Dialect
    from disque.server.eventlog import EventLog
    from disque.server.shell import Shell
    from disque.server.stomp import Stomp

HOSTS = ("127.0.0.1",)  # without http-bind
PACKAGES = ("hypercorn", "jinja2", "prometheus_client", "starlette")  # the extra `web`
RESP, STOMP, VISIT = b"R", b"S", b"V"  # as disque.web.leash has them
FAREWELL_S = 2.0  # for the process to end with the leash, before it is killed
AGAIN_FIRST_S = 1.0  # after a process that failed, doubling
AGAIN_MAX_S = 60.0


def open_port(config: Config, events: EventLog) -> list[socket.socket]:
    """Listeners of the page, none if there is to be no page.

    A port that was set and can't be had is a ConfigError; the default one is given up with a warning, and without the
    packages of the extra `web` it isn't even opened.
    """
    port = config.page_port
    if not port:
        return []
    missing = missing_packages()
    if missing:
        text = f"needs {' '.join(missing)}: install disque-broker[web]"
        if config.http_port is not None:
            raise ConfigError(f"http-port {text}")
        events.event("notice", "page-off", reason=text)
        return []
    try:
        return listen(config.http_bind or HOSTS, port, config.tcp_backlog)
    except ConfigError as error:
        if config.http_port is not None:
            raise
        events.event("warning", "page-off", reason=error)
        return []


def missing_packages() -> list[str]:
    """What must be installed before there can be a page; found out without importing anything."""
    return [name for name in PACKAGES if find_spec(name) is None]


class Page:
    """The process that serves the page, while somebody wants it."""

    def __init__(self, shell: Shell, listeners: Sequence[socket.socket], stomp: Stomp) -> None:
        self._shell = shell
        self._listeners = listeners
        self._dialects: Mapping[bytes, Dialect | None] = {
            RESP: None,
            STOMP: stomp,
            VISIT: Visits(shell, stomp),
        }
        self._leash: socket.socket | None = None
        self._again_s = AGAIN_FIRST_S

    async def run(self) -> None:
        """Serve until cancelled; the listeners are closed at the end."""
        try:
            while True:
                await self._wait_visitor()
                started_at = trio.current_time()
                try:
                    status = await self._serve()
                    trouble = f"exit {status}" if status else ""
                except OSError as error:  # no process or no descriptor to be had
                    trouble = error.strerror or str(error)
                if not trouble or trio.current_time() - started_at > AGAIN_MAX_S:
                    self._again_s = AGAIN_FIRST_S
                if not trouble:
                    continue
                self._shell.events.event(
                    "warning", "page-failed", reason=trouble, again_in_s=self._again_s
                )
                await trio.sleep(self._again_s)
                self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
        finally:
            for each in self._listeners:
                each.close()

    def settings_changed(self) -> None:
        """Tell the process, if there is one, what the configuration says now."""
        import json  # a node that nobody looks at starts without it

        if self._leash is None:
            return
        config = self._shell.config
        settings = {
            "password": config.requirepass,
            "operators": {
                name: [each.hex() for each in user.digests]
                for name, user in config.user.items()
                if user.has_everything
            },
            "auth_failures_max": config.auth_failures_max,
            "is_exposed": config.is_page_exposed,
            "is_tls": config.http_tls,
            "asks_certificate": config.tls_auth_clients == "yes" and bool(config.tls_ca_cert_file),
            "cert_file": config.tls_cert_file,
            "key_file": config.tls_key_file,
            "ca_file": config.tls_ca_cert_file,
            "counts_visits": True,
            "knows_page": True,
            "peer_tls_port": config.tls_port if config.tls_only else 0,
        }
        try:
            self._leash.send(json.dumps(settings).encode() + b"\n")
        except OSError as error:
            # It may use an old password now: a new process knows better.
            self._shell.events.event("warning", "page-untold", reason=error.strerror)
            self._leash.shutdown(socket.SHUT_RDWR)

    async def _wait_visitor(self) -> None:
        async with trio.open_nursery() as nursery:

            async def wait(listener: socket.socket) -> None:
                await trio.lowlevel.wait_readable(listener)
                nursery.cancel_scope.cancel()

            for each in self._listeners:
                nursery.start_soon(wait, each)

    async def _serve(self) -> int:
        """Run one process to its end; its exit status."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            process = self._start(theirs)
            theirs.close()
            self._shell.events.event("notice", "page-started", pid=process.pid)
            self._leash = ours
            try:
                self.settings_changed()
                await self._admit_connections(ours)
            finally:
                self._leash = None
                ours.close()
                with trio.CancelScope(shield=True):
                    status = await _wait_end(process)
        return status

    def _start(self, leash: socket.socket) -> subprocess.Popen[bytes]:
        """Start the process. No task or thread of trio's: the system's call takes a millisecond."""
        files = [leash.fileno(), *[each.fileno() for each in self._listeners]]
        root = str(Path(disque.__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)}
        return subprocess.Popen(
            # -P: nothing is imported from the present folder, which holds data.
            [sys.executable, "-P", "-m", "disque.web", *map(str, files)],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            env={**kept, "PYTHONPATH": path},
            start_new_session=True,
        )

    async def _admit_connections(self, leash: socket.socket) -> None:
        """Serve the connections that come up the leash, until it ends."""
        while True:
            await trio.lowlevel.wait_readable(leash)
            try:
                tag, files, _, _ = socket.recv_fds(leash, 1, 1)
            except BlockingIOError:
                continue
            except ConnectionError:
                return
            if not tag:
                return
            address = _address(leash)  # came with the tag, in one piece
            for file in files:
                self._shell.clients.admit(
                    socket.socket(fileno=file),
                    address,
                    self._dialects.get(tag),
                    is_secured=self._shell.config.http_tls,
                    is_own=tag == RESP,
                )


def _address(leash: socket.socket) -> tuple[str, int] | str:
    """For whom a connection is: host and port, "" for the page itself."""
    size = leash.recv(1)[0]
    host, _, port = leash.recv(size).decode().partition(" ") if size else ("", "", "")
    return (host, int(port)) if host else ""


async def _wait_end(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a process that is about to end, or is made to."""
    with trio.move_on_after(FAREWELL_S) as patience:
        while process.poll() is None:
            await trio.sleep(0.005)
    if patience.cancelled_caught:
        process.kill()
    return process.wait()
