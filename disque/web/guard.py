"""Guard: who may see the page and act on it. ASGI around the pages, which it knows nothing of.

Without a password the page listens at loopback only; then a foreign name in Host (another site's, pointed at this
machine) is refused. With one, Basic auth asks for user `default` and requirepass, or for a user with all rights: the
page shows all, and acts as `default`. What changes something needs a token that only our own pages have: a keyed hash
of a cookie, so nothing is kept for it here. /health and /ready are for everybody.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketClose

from disque.web.visit import visit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from disque.web.leash import Settings

USER = b"default"
COOKIE = "disque-page"
OPEN_PATHS = ("/health", "/ready")
FORM_BYTES_MAX = 64 << 10
FORM_S_MAX = 10.0
WRONG_PASSWORD_S = 0.5  # that a wrong password waits for its answer
WRONG_PASSWORDS_MAX = 8  # that wait at a time; the others wait for these
WINDOW_S = 60.0  # in which wrong passwords of an address are counted together
ADDRESSES_MAX = 10_000  # whose wrong passwords are remembered; the oldest go
_SESSION = re.compile(r"[0-9a-f]{32}")
CERTIFIED = "disque.certified"  # in the state of a connection: it has shown a certificate
REFUSAL = "disque.refusal"  # likewise: why the node has no room for it
_SCOPE_KEY = "disque.session"
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: a browser would hide then, too, that a form comes from our own page
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """An ASGI application that lets through what may pass."""

    def __init__(self, app: ASGIApp, settings: Callable[[], Settings]) -> None:
        self._app = app
        self._settings = settings
        self._waiting = trio.CapacityLimiter(WRONG_PASSWORDS_MAX)
        self._wrong: dict[str, tuple[float, int]] = {}  # by address: since when, how many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one WebSocket."""
        if scope["type"] == "websocket":
            is_welcome = self._may_talk(Headers(scope=scope)) and self._is_certified(scope)
            is_welcome = is_welcome and not _refusal_in(scope)
            await (self._app if is_welcome else WebSocketClose(1008))(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        session = HTTPConnection(scope).cookies.get(COOKIE, "")
        is_new = _SESSION.fullmatch(session) is None
        is_static = scope["path"].startswith("/static/")
        scope[_SCOPE_KEY] = secrets.token_hex(16) if is_new else session

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, text in _HEADERS.items():
                    out[name] = text
                out.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
                if is_new and out.get("content-type", "").startswith("text/html"):
                    cookie = f"{COOKIE}={scope[_SCOPE_KEY]}; Path=/; HttpOnly; SameSite=Strict"
                    cookie += "; Secure" if scope["scheme"] == "https" else ""
                    out.append("Set-Cookie", cookie)
            await send(message)

        app = self._app
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front may count otherwise where the request ends, and pass on what it forbids
            app = PlainTextResponse("Two lengths.\n", 400, {"Connection": "close"})
        elif scope["path"] not in OPEN_PATHS:
            app = await self._refusal(scope, headers) or app
        await app(scope, receive, send_safely)

    async def _refusal(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """What is answered in place of the page, None if it may be seen."""
        settings, place = self._settings(), _place(scope["client"])
        if reason := _refusal_in(scope):
            return PlainTextResponse(f"{reason}\n", 503, {"Connection": "close"})
        if settings.is_exposed and not settings.password:
            text = (
                "The page listens at other addresses than loopback, so requirepass must be set.\n"
            )
            return PlainTextResponse(text, 403)
        if not settings.is_exposed and not is_local_name(headers.get("host", "")):
            text = "Without http-bind the page answers to localhost and to addresses only.\n"
            return PlainTextResponse(text, 421)
        wait_s = self._wait_s(place, settings.auth_failures_max)
        if settings.password and "authorization" in headers and wait_s > 0:
            text = "Too many wrong passwords from this address.\n"
            return PlainTextResponse(text, 429, {"Retry-After": f"{wait_s:.0f}"})
        user = _user_in(headers.get("authorization", ""), settings) if settings.password else ""
        if user and (visit := visit_of(scope)) is not None:
            visit.known(user)
        if settings.password and not user:
            if "authorization" in headers:
                self._note_wrong(place)
                async with self._waiting:
                    await trio.sleep(WRONG_PASSWORD_S)
            challenge = {"WWW-Authenticate": 'Basic realm="disque-broker", charset="UTF-8"'}
            return PlainTextResponse(
                "User default and the password of requirepass, or a user with +@all ~*, please.\n",
                401,
                challenge,
            )
        if scope["method"] not in ("GET", "HEAD") and not self._is_own_site(headers):
            return PlainTextResponse("Another site has sent this; nothing was done.\n", 403)
        return None

    def _wait_s(self, place: str, most: int) -> float:
        """How long nobody from there is looked at, 0 for welcome; as the node does with its clients."""
        since, count = self._wrong.get(place, (0.0, 0))
        left_s = since + WINDOW_S - trio.current_time()
        if left_s <= 0:
            self._wrong.pop(place, None)
        return left_s if most and count >= most and left_s > 0 else 0.0

    def _note_wrong(self, place: str) -> None:
        since, count = self._wrong.get(place, (trio.current_time(), 0))
        while place not in self._wrong and len(self._wrong) >= ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[place] = since, count + 1

    def _may_talk(self, headers: Headers) -> bool:
        """A WebSocket: its own protocol asks for the password; without one, only pages of this machine may talk."""
        settings = self._settings()
        if settings.password or settings.is_exposed:
            return bool(settings.password)
        return self._is_own_site(headers) and is_local_name(headers.get("host", ""))

    def _is_certified(self, scope: Scope) -> bool:
        """False if it would need a certificate on the port of its protocol, and has none (tls-auth-clients)."""
        settings = self._settings()
        is_needed = settings.is_tls and settings.asks_certificate
        return not is_needed or bool(scope.get("state", {}).get(CERTIFIED))

    @staticmethod
    def _is_own_site(headers: Headers) -> bool:
        """False if a browser says that another site's page made it ask."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None:
            return site in ("same-origin", "none")
        return origin is None or origin.partition("://")[2] == headers.get("host", "")


def _refusal_in(scope: Scope) -> str:
    return str(scope.get("state", {}).get(REFUSAL, ""))


def _place(client: tuple[str, int] | None) -> str:
    """Where wrong passwords are counted together: an address, of IPv6 the network that one owner has (/64)."""
    host = "" if client is None else client[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def is_local_name(host: str) -> bool:
    """True for `localhost` and literal addresses, with or without a port: names that no other site can point here."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if name.lower() in ("localhost", "localhost."):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _user_in(authorization: str, settings: Settings) -> str:
    """Whose Basic credentials these are, of those who may do everything, "" for nobody; compared in a time that tells
    nothing."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        user, colon, given = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return ""
    name = user.decode("utf-8", "replace")
    password = settings.password.encode("utf-8", "surrogateescape")
    digests = [hashlib.sha256(password).hexdigest()]
    if user != USER:
        digests = list(settings.operators.get(name, ()))
    said = hashlib.sha256(given).hexdigest()
    is_right = any([hmac.compare_digest(said, each) for each in digests])
    return name if colon and is_right else ""


class Tokens:
    """Tokens for forms, good for one browser (its cookie) and this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, request: Request) -> str:
        """The token of whoever asks."""
        session: str = request.scope[_SCOPE_KEY]
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    async def read_form(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form of ours, in order. HTTPException: too large, too slow, or without a good token."""
        body = bytearray()
        with trio.move_on_after(FORM_S_MAX) as patience:
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > FORM_BYTES_MAX:
                        raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX} bytes.")
        if patience.cancelled_caught:
            raise HTTPException(408, f"The form didn't come within {FORM_S_MAX:g} s.")
        fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
        token = next((text for name, text in fields if name == "token"), "")
        if not hmac.compare_digest(token.encode(), self.of(request).encode()):
            raise HTTPException(
                403, "The form is from before a restart of the page: reload it, and try again."
            )
        return [(name, text) for name, text in fields if name != "token"]


def session_of(request: Request) -> str:
    """The browser, by its cookie."""
    session: str = request.scope[_SCOPE_KEY]
    return session
