"""A member that answers anything: its page is odd, and never an error, nor the end of the process for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from disque.web import metrics, views
from disque.web.node import UnreachableError
from disque.web.pages import make_templates
from disque.web.picture import fields
from disque.web.replies import Failure, ReplyFormatError, ReplyReader
from disque.web.watch import CALLS_MAX, Member, Watch, sample_of

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from disque.web.node import Word
    from disque.web.replies import Reply

INFO = [each[0] for each in (*metrics._COUNTERS, *metrics._GAUGES)]
QUEUE = [
    *("name", "len", "oldest-age", "delivered", "delayed", "acked", "copies", "blocked"),
    *("jobs-in", "jobs-out", "pause"),
]
JOB = [
    *("id", "queue", "state", "repl", "ttl", "ctime", "delay", "retry", "nacks", "body"),
    *("additional-deliveries", "nodes-delivered", "nodes-confirmed", "next-requeue-within"),
    *("next-awake-within", "priority", "max-deliveries", "deliveries", "dead-letter", "reason"),
    *("headers", "own-queue"),
]
TEXTS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.sampled_from(["", "²", "--1", "9" * 30, "9" * 5_000, "1e999", "nan", "\x1b", "a,b"]),
    st.text(max_size=5),
)
LEAVES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    TEXTS.map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from([b"active", b"queued", b"acked", b"nack", b"0", b"\xff", b"{}", b"[" * 5_000]),
    st.text(max_size=5),
    st.builds(Failure, st.just("ERR no")),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
PAGES = {
    "overview.html": lambda watch: views.overview(watch, sort="oldest", find=""),
    "queue.html": lambda watch: views.queue(watch, b"q"),
    "work.html": lambda watch: views.work(watch, b"q"),
    "job.html": lambda watch: views.job(watch, "D-1", "json"),
    "dead.html": lambda watch: views.dead_letters(watch, b"q"),
    "nodes.html": views.nodes,
}


class Liar:
    """In a Node's place."""

    def __init__(self, data: DataObject) -> None:
        self._data = data

    async def ask(self, *commands: tuple[Word, ...]) -> list[Reply]:
        """Something like an answer to each."""
        return [self._answer(words) for words in commands]

    def _answer(self, words: tuple[Word, ...]) -> Reply:
        draw = self._data.draw
        if draw(st.integers(0, 9)) == 9:
            return draw(VALUES)
        match words[0]:
            case "INFO":
                lines = [f"{name}:{draw(TEXTS)}" for name in INFO if draw(st.booleans())]
                return "\r\n".join(lines).encode("utf-8", "replace")
            case "CONFIG":
                return [str(words[2]).encode(), draw(LEAVES)]
            case "SHOW":
                return self._pairs(JOB)
            case "QSTAT":
                return self._pairs(QUEUE)
            case "QSCAN":
                rows: list[Reply] = [self._pairs(QUEUE) for _ in range(draw(st.integers(0, 2)))]
                return [draw(st.sampled_from([b"0", b"7", None])), rows]
            case "JSCAN":
                return [draw(st.sampled_from([b"0", b"7", None])), [self._pairs(JOB)]]
            case "QPEEK":
                return [draw(VALUES), [b"q", draw(LEAVES), draw(LEAVES)]]
        return draw(VALUES)

    def _pairs(self, names: list[str]) -> list[Reply]:
        draw = self._data.draw
        pairs: list[Reply] = []
        for name in names:
            if draw(st.booleans()):
                value = b"q" if name == "name" else draw(VALUES)
                pairs += [name.encode(), value]
        return pairs


@given(st.data())
def test_no_answer_of_a_member_is_an_error_of_a_page(data: DataObject) -> None:
    node: Any = Liar(data)
    templates = make_templates()
    name = data.draw(st.sampled_from(sorted(PAGES)))

    async def look() -> None:
        watch = Watch(node, lambda _host, _port: node)
        member = Member("b" * 40, "host", 1, node, was_asked=True)
        watch.members = {member.id: member}
        watch._looked_at = trio.current_time()
        for _ in range(2):
            try:
                member.take(await sample_of(node))
            except UnreachableError as error:
                member.trouble = str(error)
        assert watch.now.added_rate >= 0
        if member.is_up:
            assert member.sample is not None
            metrics.exposition(member.sample, fields(b""))
        context = await PAGES[name](watch)  # type: ignore[no-untyped-call]
        said = {"token": "", "version": "", "layout": "base.html", "here": "/", "said": None}
        assert "<h1>" in templates.get_template(name).render({**context, **said, "is_live": True})

    trio.run(look)


async def test_a_walk_over_queues_that_never_ends_is_given_up() -> None:
    class Endless(Liar):
        asked = 0

        def _answer(self, words: tuple[Word, ...]) -> Reply:
            self.asked += 1
            return [b"7", [[b"name", b"q"]]] if words[0] == "QSCAN" else b""

    node: Any = Endless(None)  # type: ignore[arg-type]
    sample = await sample_of(node)
    assert (list(sample.queues), sample.is_complete) == ([b"q"], False)
    assert node.asked <= CALLS_MAX + 7


@pytest.mark.parametrize("kind", [b":", b"$", b"*"])
def test_a_number_has_64_bits(kind: bytes) -> None:
    with pytest.raises(ReplyFormatError):
        ReplyReader(bulk_bytes_max=100).feed(kind + b"9" * 400 + b"\r\n")
