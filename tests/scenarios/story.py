"""Story: a scenario file, what its directives do, and the transcript of what happened.

A file is blocks with an empty line between them: directives, `----`, what is expected. `#` begins a comment line.
Several directives may share a line, with `;` between them.

    nodes a b c               begins every file; the salted order of each job is a, b, c unless `order` says otherwise
    nodes a b+1d              b's wall clock is a day ahead of a's
    order c a b               salted order of the jobs that are added from here on
    a> ADDJOB q body 0        a command at a, by Disque's own syntax; j1 stands for the id of the first job
    a/p> GETJOB FROM q        the same on a connection that has a name
    disconnect a/p
    cut a -> b; cut c from a b; heal       both ends see it at once
    lose a -> b; hold a -> b               nobody sees it: messages get lost, or wait for `release`
    keep                      links carry again what `lose` lost; what is held stays held
    release                   what was held arrives
    crash b; restart b        without a log, so empty
    leave b; forget b
    pause q in at b           in, out, all, none: b hears of a cluster-wide pause
    run 2s

Messages of one line were on their way together; then the changes that they made and the replies that clients got.
`+2s` says how long after the block's beginning; time stands still while messages travel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import attrs

from disque.core import messages as msg
from disque.core import parsing
from disque.core.ready import ClientId
from disque.errors import CommandError
from tests.scenarios import telling
from tests.world import EPOCH_MS, LoopError, Packet, World

RULE = "----"
WIDTH = 118
ROUNDS_MAX = 1_000  # of messages at one moment
FLAGS = {"none": 0, "in": 1, "out": 2, "all": 3}
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ScriptError(Exception):
    """A scenario file that can't be played: file text, not engine, is wrong."""


@attrs.frozen
class Block:
    """Directives as they stand in the file, and the lines that were expected."""

    script: tuple[str, ...]
    expected: tuple[str, ...]


def parse(text: str) -> list[Block]:
    """Cut a file into blocks; a block without `----` expects that nothing is to be told."""
    blocks = []
    for part in re.split(r"\n[ \t]*\n", text.strip("\n")):
        script, _, expected = part.partition(f"\n{RULE}")
        blocks.append(Block(tuple(script.splitlines()), tuple(expected.strip("\n").splitlines())))
    return blocks


def render(blocks: list[Block]) -> str:
    """The text of a file of these blocks."""
    parts = []
    for block in blocks:
        lines = [*block.script, *([RULE, *block.expected] if block.expected else [])]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def play(blocks: list[Block]) -> list[Block]:
    """The same blocks with what really happened."""
    story = Story()
    return [Block(block.script, tuple(story.tell(block.script))) for block in blocks]


class Story:
    """Plays directives in a world of engines and writes down what happens."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._began_at = 0  # of the block, ms of the world
        self._told_at = 0  # ms after that, of the last line
        self._clients: dict[str, tuple[str, ClientId]] = {}
        self._lossy: set[tuple[str, str]] = set()
        self._holding: set[tuple[str, str]] = set()
        self._held: list[Packet] = []
        self._standings: dict[tuple[str, str], str] = {}
        self._lines: list[str] = []

    @property
    def world(self) -> World:
        """The world, once `nodes` has made it."""
        if self._world is None:
            raise ScriptError("a scenario begins with: nodes a b c")
        return self._world

    def tell(self, script: tuple[str, ...]) -> list[str]:
        """Carry out the directives of a block; returns its transcript."""
        self._lines = []
        self._told_at = 0
        if self._world is not None:
            self._began_at = self._world.now
        for line in script:
            if not line.startswith("#"):
                for directive in line.split(";"):
                    self._carry_out(directive.strip())
                    self._settle()
        return self._lines

    # Directives

    def _carry_out(self, directive: str) -> None:
        command = re.fullmatch(r"([a-f])(/\w+)?> (.+)", directive)
        if command is not None:
            self._command(command[1], command[2], command[3])
            return
        word, *rest = directive.split()
        handle = self._HANDLERS.get(word)
        if handle is None:
            raise ScriptError(f"unknown directive {directive!r}")
        handle(self, rest)

    def _command(self, node: str, label: str | None, text: str) -> None:
        world = self.world
        name, *args = [self._argument(word) for word in text.split()]
        try:
            command = parsing.parse(name.lower(), args)
        except (CommandError, KeyError) as error:
            raise ScriptError(f"{text!r}: {error!r}") from error
        client = self._clients[node + label][1] if label and node + label in self._clients else None
        client = client or world.new_client()
        self._clients[node + (label or f"/{client}")] = (node, client)
        world.command(node, command, client)

    def _argument(self, word: str) -> bytes:
        return self.world.jobs.get(word, None) or word.encode()

    def _nodes(self, words: list[str]) -> None:
        offsets = {}
        for word in words:
            name, sign, offset = re.fullmatch(r"([a-f])(?:([+-])(\w+))?", word).groups()  # type: ignore[union-attr]
            offsets[name] = _ms(offset) * (-1 if sign == "-" else 1) if sign else 0
        self._world = World("".join(offsets), offsets_ms=offsets)
        self._world.settle()
        for _ in self._world.run(1000):  # the first walks are over
            self._world.settle()
        self._began_at = self._world.now

    def _order(self, words: list[str]) -> None:
        self.world.order = "".join(words)

    def _cut(self, words: list[str]) -> None:
        for source, target in _links(words):
            self.world.cut(source, target)

    def _heal(self, words: list[str]) -> None:
        self.world.heal()

    def _lose(self, words: list[str]) -> None:
        self._lossy.update(_links(words))

    def _keep(self, words: list[str]) -> None:
        self._lossy.clear()

    def _hold(self, words: list[str]) -> None:
        self._holding.update(_links(words))

    def _release(self, words: list[str]) -> None:
        self._holding.clear()
        self._held, self.world.flying = [], [*self._held, *self.world.flying]

    def _crash(self, words: list[str]) -> None:
        for name in words:
            self.world.crash(name)
            for key in [key for key in self._standings if key[0] == name]:
                del self._standings[key]

    def _restart(self, words: list[str]) -> None:
        for name in words:
            self.world.restart(name)

    def _leave(self, words: list[str]) -> None:
        self.world.leave(words[0])

    def _forget(self, words: list[str]) -> None:
        self.world.forget(words[0])

    def _pause(self, words: list[str]) -> None:
        queue, flags, _, name = words
        world = self.world
        writer = next(node for node in world.nodes.values() if node.name != name)
        stamp = EPOCH_MS + world.now
        pause = msg.Pause(queue.encode(), stamp, writer.id, FLAGS[flags])
        world.tell(writer.name, name, pause)

    def _disconnect(self, words: list[str]) -> None:
        node, client = self._clients[words[0]]
        self.world.disconnect(node, client)

    def _run(self, words: list[str]) -> None:
        for _ in self.world.run(_ms(words[0])):
            self._settle()

    _HANDLERS: dict[str, Callable[[Story, list[str]], None]] = {
        "nodes": _nodes, "order": _order, "cut": _cut, "heal": _heal, "lose": _lose, "keep": _keep, "hold": _hold,
        "release": _release, "crash": _crash, "restart": _restart, "leave": _leave, "forget": _forget,
        "pause": _pause, "disconnect": _disconnect, "run": _run,
    }  # fmt: skip

    # What happens

    def _settle(self) -> None:
        """Deliver round by round until nothing flies, and write each round down."""
        self._write([])
        for _ in range(ROUNDS_MAX):
            if not self.world.flying:
                return
            batch, self.world.flying = self.world.flying, []
            self._write(self._round(batch))
        raise LoopError(f"{ROUNDS_MAX} rounds without rest: {self._lines[-3:]}")

    def _round(self, batch: list[Packet]) -> list[str]:
        # (from, text, fate) -> how often to whom
        told: dict[tuple[str, str, str], Counter[str]] = {}
        for packet in batch:
            source, target = packet.link
            fate = ""
            if packet.link in self._holding:
                self._held.append(packet)
                fate = " (held)"
            elif packet.link in self._lossy or not self.world.arrive(packet):
                fate = " (lost)"
            for message in packet.messages:
                text = telling.tell_message(self.world, message)
                if text is not None:
                    told.setdefault((source, text, fate), Counter())[target] += 1
        lines = []
        for (source, text, fate), counts in told.items():
            for times in dict.fromkeys(counts.values()):
                targets = " ".join(name for name, n in counts.items() if n == times)
                often = f" x{times}" if times > 1 else ""
                lines.append(f"{source} -> {targets} {text}{often}{fate}")
        return lines

    def _write(self, messages: list[str]) -> None:
        entries = [*messages, *self._changes(), *self._answers()]
        if not entries:
            return
        passed = self.world.now - self._began_at
        if passed != self._told_at:
            self._told_at = passed
            entries[0] = f"+{telling.duration(passed)}: {entries[0]}"
        self._lines += _wrapped(entries)

    def _changes(self) -> list[str]:
        told: dict[tuple[str, str], list[str]] = {}
        for node in self.world.alive:
            for name, job in self.world.jobs.items():
                before = self._standings.get((node.name, name), "")
                after = telling.standing(node.state, job)
                if before != after:
                    self._standings[node.name, name] = after
                    text = telling.change(before, after)
                    if text is not None:
                        told.setdefault((name, text), []).append(node.name)
        return [f"{' '.join(nodes)} {text} {name}" for (name, text), nodes in told.items()]

    def _answers(self) -> list[str]:
        answers, self.world.answers = self.world.answers, []
        told = []
        for answer in answers:
            labels = [key for key, (_, client) in self._clients.items() if client == answer.client]
            name = answer.node if labels[0].split("/")[1].isdigit() else labels[0]
            told.append(f"{name}: {telling.tell_reply(self.world, answer.reply)}")
        return told


def _wrapped(entries: list[str]) -> list[str]:
    """The entries in lines of at most WIDTH characters; one longer entry has a line of its own."""
    lines = [entries[0]]
    for entry in entries[1:]:
        if len(lines[-1]) + len(entry) + 3 <= WIDTH:
            lines[-1] += f";  {entry}"
        else:
            lines[-1] += ";"
            lines.append(f"    {entry}")
    return lines


def _links(words: list[str]) -> list[tuple[str, str]]:
    """`a -> b c`: from a to each; `c from a b`: both ways between c and each."""
    text = " ".join(words)
    if one_way := re.fullmatch(r"([a-f]) -> ([a-f](?: [a-f])*)", text):
        return [(one_way[1], target) for target in one_way[2].split()]
    if both := re.fullmatch(r"([a-f]) from ([a-f](?: [a-f])*)", text):
        others = both[2].split()
        return [(both[1], other) for other in others] + [(other, both[1]) for other in others]
    raise ScriptError(f"no link: {text!r}; say 'a -> b' or 'c from a b'")


def _ms(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)(ms|s|m|h|d)", text)
    if found is None:
        raise ScriptError(f"no time: {text!r}; say 500ms, 2s, 1m")
    return int(float(found[1]) * _UNITS[found[2]])
