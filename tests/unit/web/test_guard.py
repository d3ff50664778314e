"""Guard: who may see the page, who may act on it, and what every answer says to browsers."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from disque.web.guard import CERTIFIED, COOKIE, FORM_BYTES_MAX, Guard, Tokens, is_local_name
from disque.web.leash import Settings
from tests.unit.web.asgi import Answer, ask

if TYPE_CHECKING:
    from typing import Any

    from starlette.types import Message
    from starlette.websockets import WebSocket

SESSION = "0123456789abcdef" * 2


def guarded(**settings: Any) -> tuple[Guard, Tokens]:
    """A page, a form and a probe behind a guard of these settings."""
    tokens = Tokens()

    async def page(request: Request) -> Response:
        return HTMLResponse(tokens.of(request))

    async def act(request: Request) -> Response:
        fields = await tokens.read_form(request)
        return PlainTextResponse(repr(fields))

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def talk(socket: WebSocket) -> None:
        await socket.accept()

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return PlainTextResponse(error.detail, error.status_code)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/act", act, methods=["POST"]),
            Route("/health", health),
            WebSocketRoute("/stomp", talk),
        ],
        exception_handlers={HTTPException: refuse},
    )
    return Guard(app, lambda: Settings(**settings)), tokens


def basic(user: str, password: str) -> str:
    """An Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("LOCALHOST:8711", True),
        ("127.0.0.1:8711", True),
        ("[::1]:8711", True),
        ("10.0.0.1", True),
        ("", False),
        ("evil.example", False),
        ("evil.example:8711", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8711", False),
        ("[::1]evil:1", False),
    ],
)
def test_names_that_another_site_could_point_here_are_not_local(host: str, is_local: bool) -> None:
    assert is_local_name(host) is is_local


async def test_without_a_password_a_foreign_host_is_refused() -> None:
    guard, _ = guarded()
    assert (await ask(guard, "/", host="evil.example:8711")).status == 421
    assert (await ask(guard, "/")).status == 200


@pytest.mark.parametrize("path", ["/", "/health"])
async def test_a_request_of_two_lengths_is_refused_and_ends_its_connection(path: str) -> None:
    guard, _ = guarded()
    answer = await ask(guard, path, content_length="5", transfer_encoding="chunked")
    assert (answer.status, answer.headers["connection"]) == (400, "close")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        basic("default", "wrong"),
        basic("default", "secret "),
        basic("admin", "secret"),
        basic("", "secret"),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"default").decode(),
        "Bearer secret",
    ],
)
async def test_only_the_user_default_with_the_password_may_see_the_page(
    authorization: str | None, autojump_clock: object
) -> None:
    guard, _ = guarded(password="secret")
    headers = {} if authorization is None else {"authorization": authorization}
    answer = await ask(guard, "/", **headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert (await ask(guard, "/", authorization=basic("default", "secret"))).status == 200


async def test_who_may_do_everything_sees_the_page_by_the_own_name(autojump_clock: object) -> None:
    operators = {"ann": ["0" * 64, hashlib.sha256(b"hers").hexdigest()]}
    guard, _ = guarded(password="secret", operators=operators)
    assert (await ask(guard, "/", authorization=basic("ann", "hers"))).status == 200
    for user, password in (("ann", "secret"), ("default", "hers"), ("bob", "hers"), ("ann", "")):
        assert (await ask(guard, "/", authorization=basic(user, password))).status == 401


async def test_a_password_may_be_any_text() -> None:
    guard, _ = guarded(password="pä:ss\udcff")
    right = b"default:" + "pä:ss".encode() + b"\xff"
    authorization = "Basic " + base64.b64encode(right).decode()
    assert (await ask(guard, "/", authorization=authorization)).status == 200


async def test_probes_need_no_password_and_no_known_host() -> None:
    guard, _ = guarded(password="secret", is_exposed=True)
    assert (await ask(guard, "/health", host="pod-7.example")).status == 200


async def test_an_exposed_page_without_a_password_shows_nothing() -> None:
    guard, _ = guarded(is_exposed=True)
    assert (await ask(guard, "/")).status == 403


async def test_an_exposed_page_may_have_any_name() -> None:
    guard, _ = guarded(password="secret", is_exposed=True)
    answer = await ask(guard, "/", host="broker.example", authorization=basic("default", "secret"))
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/", "/act", "/health", "/nowhere"])
async def test_every_answer_tells_browsers_what_they_may_do(path: str) -> None:
    guard, _ = guarded()
    headers = (await ask(guard, path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


async def post(guard: Guard, body: bytes, **headers: str) -> Answer:
    """Send a form as a browser does that has our cookie."""
    return await ask(
        guard, "/act", method="POST", body=body, cookie=f"{COOKIE}={SESSION}", **headers
    )


async def test_a_form_needs_the_token_of_its_browser() -> None:
    guard, _ = guarded()
    token = (await ask(guard, "/", cookie=f"{COOKIE}={SESSION}")).body
    other = (await ask(guard, "/", cookie=f"{COOKIE}={SESSION[::-1]}")).body
    assert (await post(guard, b"a=1&token=" + token)).body == b"[('a', '1')]"
    for wrong in (b"", b"token=", b"token=x", b"token=" + other, b"token=\xff"):
        assert (await post(guard, wrong)).status == 403


async def test_a_token_is_worth_nothing_to_another_process() -> None:
    ours, _ = guarded()
    theirs, _ = guarded()
    token = (await ask(ours, "/", cookie=f"{COOKIE}={SESSION}")).body
    assert (await post(theirs, b"token=" + token)).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"origin": "http://localhost:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
async def test_another_site_cannot_send_a_form_even_with_a_token(headers: dict[str, str]) -> None:
    guard, _ = guarded()
    token = (await ask(guard, "/", cookie=f"{COOKIE}={SESSION}")).body
    assert (await post(guard, b"token=" + token, **headers)).status == 403
    good = {"origin": "http://localhost:8711", "sec_fetch_site": "same-origin"}
    assert (await post(guard, b"token=" + token, **good)).status == 200


async def test_a_form_is_bounded() -> None:
    guard, _ = guarded()
    assert (await post(guard, b"x" * (FORM_BYTES_MAX + 1))).status == 413


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=short", f"{COOKIE}={'g' * 32}"])
async def test_a_browser_without_a_good_cookie_gets_one(cookie: str) -> None:
    guard, _ = guarded()
    answer = await ask(guard, "/", cookie=cookie)
    given = answer.headers["set-cookie"]
    assert given.startswith(f"{COOKIE}=")
    assert "HttpOnly" in given
    assert "SameSite=Strict" in given
    again = await ask(guard, "/", cookie=given.partition(";")[0])
    assert "set-cookie" not in again.headers
    assert again.body == answer.body


async def talks(guard: Guard, *, is_certified: bool = False, **headers: str) -> bool:
    """True if a WebSocket is let in."""
    said: list[Message] = []
    sent = {"host": "localhost:8711", **headers}
    scope = {
        "type": "websocket",
        "path": "/stomp",
        "raw_path": b"/stomp",
        "query_string": b"",
        "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in sent.items()],
        "subprotocols": [],
        "state": {CERTIFIED: is_certified},
    }

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        said.append(message)

    await guard(scope, receive, send)
    return said[0]["type"] == "websocket.accept"


async def test_a_websocket_is_for_our_own_pages_unless_there_is_a_password_to_ask_for() -> None:
    free, _ = guarded()
    assert await talks(free)
    assert await talks(free, origin="http://localhost:8711")
    assert not await talks(free, origin="http://evil.example")
    assert not await talks(free, origin="http://evil.example", host="evil.example")
    locked, _ = guarded(password="secret", is_exposed=True)
    assert await talks(locked, origin="http://app.example", host="broker.example")
    open_to_all, _ = guarded(is_exposed=True)
    assert not await talks(open_to_all)


async def test_a_websocket_needs_a_certificate_where_the_port_of_its_protocol_asks_for_one() -> (
    None
):
    guard, _ = guarded(password="secret", is_tls=True, asks_certificate=True)
    assert not await talks(guard)
    assert await talks(guard, is_certified=True)
    assert (await ask(guard, "/health")).status == 200
    plain, _ = guarded(password="secret", asks_certificate=True)
    assert await talks(plain)


async def test_after_too_many_wrong_passwords_an_address_waits_right_or_wrong(
    autojump_clock: object,
) -> None:
    guard, _ = guarded(password="right", auth_failures_max=3)
    for _ in range(3):
        answer = await ask(guard, "/", authorization=basic("default", "wrong"))
        assert answer.status == 401
    for password in ("wrong", "right"):
        answer = await ask(guard, "/", authorization=basic("default", password))
        assert (answer.status, answer.headers["retry-after"]) == (429, "58")
    assert (await ask(guard, "/")).status == 401
    assert (await ask(guard, "/health")).status == 200
    await trio.sleep(60)
    assert (await ask(guard, "/", authorization=basic("default", "right"))).status == 200


async def test_no_limit_of_wrong_passwords_is_none(autojump_clock: object) -> None:
    guard, _ = guarded(password="right", auth_failures_max=0)
    for _ in range(70):
        await ask(guard, "/", authorization=basic("default", "wrong"))
    assert (await ask(guard, "/", authorization=basic("default", "right"))).status == 200
