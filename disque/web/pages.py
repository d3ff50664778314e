"""Pages: addresses, templates and forms. What a page shows is `views`'s business, who may see it `guard`'s.

Each page is one template that renders whole, or (for events) its live part alone. A form's action is one command to
the own node, then a redirect to a page that says what came of it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

import attrs
import jinja2
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import disque
from disque.web import picture, text, views
from disque.web.guard import session_of
from disque.web.live import Streams
from disque.web.node import UnreachableError
from disque.web.replies import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from disque.web.guard import Tokens
    from disque.web.node import Node, Word
    from disque.web.replies import Reply
    from disque.web.views import Context
    from disque.web.watch import Watch

SAID_MAX = 1_000  # browsers that are still to be told what came of a form
JOB_ID_BYTES = 40
IDS_MAX = 1_000  # of one form


@attrs.frozen
class Said:
    """What came of a form."""

    text: str
    is_trouble: bool = False


class Pages:
    """The pages for people."""

    def __init__(self, watch: Watch, tokens: Tokens) -> None:
        self._watch = watch
        self._tokens = tokens
        self._streams = Streams()
        self._said: OrderedDict[str, Said] = OrderedDict()  # by browser
        self._templates = make_templates()

    def routes(self) -> list[Route]:
        """Every address of a page, and of the forms on them."""
        return [
            Route("/", self.overview),
            Route("/find", self.find),
            Route("/queue", self.queue),
            Route("/queue/pause", self.pause, methods=["POST"]),
            Route("/queue/purge", self.purge, methods=["POST"]),
            Route("/work", self.work),
            Route("/job", self.job),
            Route("/job/requeue", self.requeue, methods=["POST"]),
            Route("/job/cancel", self.cancel, methods=["POST"]),
            Route("/job/revive", self.revive, methods=["POST"]),
            Route("/dead", self.dead),
            Route("/dead/revive", self.revive_letters, methods=["POST"]),
            Route("/dead/cancel", self.cancel_letters, methods=["POST"]),
            Route("/nodes", self.nodes),
        ]

    # What is shown

    async def overview(self, request: Request) -> Response:
        """`/?sort=&find=`"""
        sort, find = _word(request, "sort"), _word(request, "find")

        async def view() -> Context:
            return await views.overview(self._watch, sort=sort, find=find)

        return await self._show(request, "overview.html", view)

    async def queue(self, request: Request) -> Response:
        """`/queue?name=`"""
        name = _query(request, "name")
        return await self._show(request, "queue.html", lambda: views.queue(self._watch, name))

    async def work(self, request: Request) -> Response:
        """`/work?name=`: as it was when it was loaded; to walk over all copies every second would cost too much."""
        name = _query(request, "name")
        return await self._show(
            request, "work.html", lambda: views.work(self._watch, name), is_live=False
        )

    async def job(self, request: Request) -> Response:
        """`/job?id=&as=text|json|hex`"""
        id_, form = _job_id(request), _word(request, "as")
        return await self._show(request, "job.html", lambda: views.job(self._watch, id_, form))

    async def dead(self, request: Request) -> Response:
        """`/dead?name=`; without a name the default queue of dead letters."""
        given = _words(request).get("name")
        return await self._show(
            request, "dead.html", lambda: views.dead_letters(self._watch, given)
        )

    async def nodes(self, request: Request) -> Response:
        """`/nodes`"""
        return await self._show(request, "nodes.html", lambda: views.nodes(self._watch))

    async def find(self, request: Request) -> Response:
        """`/find?what=`: the job of that id, or the queue of that name."""
        what = _query(request, "what")
        if what[:2] == b"D-" and len(what.strip()) == JOB_ID_BYTES:
            return RedirectResponse(f"/job?id={text.quoted(what.strip())}", 303)
        return RedirectResponse(f"/queue?name={text.quoted(what)}", 303)

    async def _show(
        self,
        request: Request,
        template: str,
        view: Callable[[], Awaitable[Context]],
        *,
        is_live: bool = True,
    ) -> Response:
        fixed = {"token": self._tokens.of(request), "version": disque.__version__}
        if is_live and self._streams.is_wanted(request):

            async def render() -> str:
                context = {**await view(), **fixed, "layout": "fragment.html"}
                return self._templates.get_template(template).render(context)

            return self._streams.respond(render, self._watch.wait_tick)
        context = {**await view(), **fixed, "layout": "base.html", "is_live": is_live}
        context["here"] = request.url.path
        context["said"] = self._said.pop(session_of(request), None)
        return HTMLResponse(self._templates.get_template(template).render(context))

    async def trouble(self, _: Request, error: Exception) -> Response:
        """What is shown in place of a page that can't be."""
        assert isinstance(error, HTTPException)
        context = {
            "heading": {404: "There is no such page", 405: "That can't be done here"}.get(
                error.status_code, "Nothing was done" if error.status_code < 500 else "Sorry"
            ),
            "detail": error.detail,
            "version": disque.__version__,
        }
        content = self._templates.get_template("message.html").render(context)
        return HTMLResponse(content, error.status_code, error.headers)

    # What is done

    async def pause(self, request: Request) -> Response:
        """Set a queue's pause for the whole cluster."""
        form = await self._tokens.read_form(request)
        flags = next((value for name, value in form if name == "flags"), "")
        if flags not in views.PAUSES:
            raise HTTPException(400, f"flags must be one of {', '.join(views.PAUSES)}.")
        name = _query(request, "name")
        return await self._act(
            request,
            ("PAUSE", name, flags, "BCAST"),
            lambda reply: f"In force at this node now: {picture.text_of(reply)}.",
            _queue_address(name),
            queue=name,
        )

    async def purge(self, request: Request) -> Response:
        """Cancel all jobs of a queue."""
        form = await self._tokens.read_form(request)
        if ("sure", "yes") not in form:
            raise HTTPException(400, "To purge a queue, tick that you are sure.")
        name = _query(request, "name")
        return await self._act(
            request, ("QPURGE", name), _tell_purged, _queue_address(name), queue=name
        )

    async def requeue(self, request: Request) -> Response:
        """Queue a job at once."""
        await self._watch.look()
        node = await views.holder_that_knows_most(self._watch, _job_id(request))
        return await self._act_on_job(request, "ENQUEUE", "Queued", node)

    async def cancel(self, request: Request) -> Response:
        """End a job everywhere."""
        return await self._act_on_job(request, "CANCELJOB", "Cancelled")

    async def revive(self, request: Request) -> Response:
        """Put a dead letter back into its own queue."""
        return await self._act_on_job(request, "REVIVE", "Revived")

    async def revive_letters(self, request: Request) -> Response:
        """Put the chosen dead letters back."""
        return await self._act_on_letters(request, "REVIVE", "revived")

    async def cancel_letters(self, request: Request) -> Response:
        """End the chosen dead letters everywhere."""
        return await self._act_on_letters(request, "CANCELJOB", "cancelled")

    async def _act_on_job(
        self, request: Request, command: str, done: str, node: Node | None = None
    ) -> Response:
        await self._tokens.read_form(request)
        id_ = _job_id(request)

        def tell(reply: Reply) -> str | Said:
            if reply:
                return f"{done}."
            return Said("Nothing was done: the job isn't in a state for that any more.", True)

        there = f"/job?id={quote(id_, safe='')}"
        return await self._act(request, (command, id_), tell, there, node=node)

    async def _act_on_letters(self, request: Request, command: str, done: str) -> Response:
        form = await self._tokens.read_form(request)
        ids = [value for name, value in form if name == "id"]
        name = _words(request).get("name")
        there = "/dead" if name is None else f"/dead?name={text.quoted(name)}"
        if not 0 < len(ids) <= IDS_MAX:
            raise HTTPException(400, f"Choose between 1 and {IDS_MAX} dead letters.")
        return await self._act(
            request,
            (command, *ids),
            lambda reply: f"{picture.number_of(reply)} of {len(ids)} {done}.",
            there,
            queue=self._watch.dead_queue if name is None else name,
        )

    async def _act(
        self,
        request: Request,
        words: tuple[Word, ...],
        tell: Callable[[Reply], str | Said],
        there: str,
        *,
        queue: bytes | None = None,
        node: Node | None = None,
    ) -> Response:
        """Carry out one command, at the own node if no other is named; the page `there` shows what came of it."""
        try:
            reply = await (node or self._watch.own).order(*words)
        except UnreachableError as error:
            said = Said(f"Whether it was done isn't known: {error}.", True)
        else:
            told = Said(reply.text, True) if isinstance(reply, Failure) else tell(reply)
            said = Said(told) if isinstance(told, str) else told
        if queue is not None:
            await self._watch.look_again(queue)
        self._said[session_of(request)] = said
        if len(self._said) > SAID_MAX:
            self._said.popitem(last=False)
        return RedirectResponse(there, 303)


def make_templates() -> jinja2.Environment:
    """The templates, with escaping on and our ways to spell bytes, numbers and times."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("disque.web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "age": _age,
        "duration": text.duration,
        "number": text.number,
        "quoted": text.quoted,
        "short": text.short,
        "shown": text.shown,
        "size": text.size,
        "speed": text.speed,
        "word": picture.text_of,
    }
    return templates


def _age(ctime: Reply) -> str:
    return text.duration(time.time() - picture.number_of(ctime) / 1e9)


def _tell_purged(reply: Reply) -> str:
    numbers = [picture.number_of(each) for each in reply] if isinstance(reply, list) else [0, 0, 0]
    jobs, answered, silent = numbers
    nodes = f"{answered} node{'s' if answered != 1 else ''}"
    line = f"{text.number(jobs)} job{'s' if jobs != 1 else ''} cancelled at {nodes}."
    return f"{line} {silent} did not answer: what only they have lives on." if silent else line


def _queue_address(name: bytes) -> str:
    return f"/queue?name={text.quoted(name)}"


def _words(request: Request) -> dict[str, bytes]:
    """The query's fields; values are any bytes."""
    raw = request.scope["query_string"].decode("latin-1")
    pairs = parse_qsl(raw, keep_blank_values=True, encoding="latin-1")
    return {name: value.encode("latin-1") for name, value in pairs}


def _query(request: Request, name: str) -> bytes:
    """A field that must be there. HTTPException without it."""
    value = _words(request).get(name)
    if value is None:
        raise HTTPException(400, f"The address must say {name}=…")
    return value


def _job_id(request: Request) -> str:
    """The field `id`; ids have plus signs, which mean spaces where somebody pasted one as it is."""
    return _word(request, "id").replace(" ", "+")


def _word(request: Request, name: str) -> str:
    """A field of plain text, "" if it isn't there."""
    return _words(request).get(name, b"").decode("utf-8", "replace")
