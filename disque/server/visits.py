"""Visits: a connection of the web page has one here, so that bounds, rules and figures of connections hold for it, too.

The page's process opens it before it says a word to a browser, and waits for the answer: `+`, or why not. The browser
is served as long as both ends stay. Lines that come: `user NAME`, whose password the browser has given; `stomp`, as a
WebSocket: from the answer on STOMP is spoken here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.resp.decoder import BufferLimitError
from disque.server.acl import DEFAULT, DEFAULT_NAME

if TYPE_CHECKING:
    from disque.errors import ProtocolError
    from disque.server.connection import Client
    from disque.server.shell import Shell
    from disque.server.stomp import Stomp

WELCOME = b"+\n"
LINE_BYTES_MAX = 128  # with the name of a user, 64 at most


class Lines:
    """What comes as lines, without their ends."""

    error: ProtocolError | None = None
    has_more = False

    def __init__(self) -> None:
        self._data = b""

    @property
    def pending_bytes(self) -> int:
        """Bytes of a line that hasn't ended."""
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add what was read; BufferLimitError for a line that nobody says."""
        self._data += data
        if len(self._data) - self._data.rfind(b"\n") > LINE_BYTES_MAX:
            raise BufferLimitError(f"a line of the page has more than {LINE_BYTES_MAX} bytes")

    def take(self, count_max: int) -> list[bytes]:
        """The next complete lines."""
        *lines, self._data = self._data.split(b"\n", count_max)
        return lines


class Visits:
    """A `dialect.Dialect`."""

    name = "http"
    tells_end = False

    def __init__(self, shell: Shell, stomp: Stomp) -> None:
        self._shell = shell
        self._stomp = stomp

    def decoder(self) -> Lines:
        """For one connection's bytes."""
        return Lines()

    def limit(self, client: Client) -> None:
        """Nothing of what is limited is read here."""

    def refusal(self, code: str, text: str) -> bytes:
        """What the page is told, to tell the browser."""
        return f"-{code} {text}\n".encode()

    def begin(self, client: Client) -> None:
        """A browser may be served; how long it may be silent is the page's business."""
        client.is_listening = True
        client.last_command = self.name
        client.answer(WELCOME)
        self._shell.turns.end(client)

    def execute(self, client: Client, request: bytes) -> None:
        """Note who it is, or become a connection of STOMP."""
        word, _, name = request.partition(b" ")
        if word == b"stomp":
            self._become_stomp(client)
        else:
            self._know(client, name.decode("utf-8", "surrogateescape"))

    def overtakes(self, request: bytes) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return True

    def broken(self, client: Client, error: ProtocolError) -> None:  # noqa: ARG002
        """Lines make sense always."""
        raise AssertionError(error)

    def resume(self, client: Client) -> None:
        """No reply of the broker leads to anything."""

    def part(self, client: Client) -> None:
        """It has nothing."""

    def _know(self, client: Client, name: str) -> None:
        """The page goes by settings that may have changed since."""
        user = DEFAULT if name == DEFAULT_NAME else self._shell.config.user.get(name)
        if user is None or not user.has_everything:
            client.die()
        else:
            self._shell.clients.crowd.logged_in(client, user)

    def _become_stomp(self, client: Client) -> None:
        """It asks for the password itself, whoever it was until now."""
        self._shell.clients.crowd.logged_out(client, self._shell.clock.now_ms())
        client.answer(WELCOME)
        client.is_listening = False
        client.decoder, client.dialect = self._stomp.decoder(), self._stomp
        self._stomp.begin(client)
