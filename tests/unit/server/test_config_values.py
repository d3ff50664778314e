"""CONFIG SET with whatever a client can say: taken, shown, and found by a restart, or refused and nothing done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from disque.errors import CommandError, ConfigError
from disque.resp.inline import quote_word
from disque.server import config_admin
from disque.server.config import DIRECTIVES, Config
from disque.server.configfile import load
from disque.server.directives import YesNo
from disque.server.rewriting import rewrite_file
from disque.server.shell import Later
from tests.unit.server.world import World, running

if TYPE_CHECKING:
    from pathlib import Path

    from disque.server.directives import Directive

ODD = [
    *(b"", b" ", b"\t\r\n", b"\0", b"a\0b", b"5\0", b"\xff\xfe", b"\xed\xa0\x80", "käse".encode(), b"a b", b" a"),
    *(b"a\nport 1", b'"', b"'", b'a"b', b"\\", b"#a", b"a #b", b"--port", b"../x", b"/", b".", b"..", b"/dev/null"),
    *(b"NaN", b"inf", b"-inf", b"-1", b"-0", b"0", b"+1", b"01", b"1", b"1.5", b"1e3", b"0x10", b"1_000", b" 1", b"1 "),
    *(b"2147483647", b"2147483648", b"-9223372036854775809", b"9223372036854775807", b"9223372036854775808"),
    *(b"9" * 4_400, b"9" * 100_000, b"\xd9\xa1", b"\xc2\xb2", b"1kb", b"1K", b"9gb", b"9999999999gb", b"1tb", b"-1kb"),
    b"loop",
    *(b"normal 0 0 0", b"normal 1kb 2kb 3", b"normal 1", b"slave 0 0 0", b"normal -1 0 0", b"normal 0 0 9999999999"),
    *(b"yes", b"NO", b"ye\xc5\xbf", b"maybe", b"x" * 512, b"x" * 513, b"x" * 4_096, b"x" * 70_000, b"x" * (1 << 20)),
]  # fmt: skip


def words_of(directive: Directive) -> list[bytes]:
    """And what this directive alone understands."""
    kind = directive.kind
    more = ["yes", "no"] if isinstance(kind, YesNo) else getattr(kind, "choices", ())
    return [*ODD, *[each.encode() for each in more]]


def meant(config: Config) -> dict[str, object]:
    """What all directives mean."""
    return {name: getattr(config, each.attribute) for name, each in DIRECTIVES.items()}


def shown(config: Config, name: str) -> str:
    ((_, text),) = config.get(name)
    return text


async def said(world: World, name: str, word: bytes) -> str:
    """CONFIG SET; what went wrong, "" if nothing did."""
    try:
        answer = config_admin.config(world.shell, None, [b"set", name.encode(), word])  # type: ignore[arg-type]
        if isinstance(answer, Later):
            await answer.find()
    except CommandError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", DIRECTIVES)
async def test_each_value_is_taken_for_good_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "disque.conf"
    path.write_text("")
    (tmp_path / "loop").symlink_to("loop")
    directive = DIRECTIVES[name]
    async with running() as world:
        config = world.config
        config.config_file = str(path)
        taken = 0
        for word in words_of(directive):
            before = meant(config), config.kept_outside.copy()
            trouble = await said(world, name, word)
            if trouble:
                assert (meant(config), config.kept_outside) == before, word
                assert len(trouble) < 5_000, word  # of a path
                continue
            taken += 1
            changed = {each for each, value in meant(config).items() if value != before[0][each]}
            assert changed <= {name}, word
            rewrite_file(config)
            monkeypatch.chdir(tmp_path)
            again = load([str(path)], {}).config
            assert meant(again) == meant(config), word
            if name != "requirepass":
                assert shown(again, name) == shown(config, name), word
        assert bool(taken) == directive.is_settable


@pytest.mark.parametrize("name", DIRECTIVES)
def test_each_value_of_the_file_is_refused_or_outlives_a_rewrite(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "disque.conf"
    for word in [*words_of(DIRECTIVES[name]), b"a:1@2", b"[::1]:7", b"[a b]", b"\xff:1"]:
        path.write_bytes(name.encode() + b" " + quote_word(word) + b"\n")
        try:
            config = load([str(path)], {}).config
        except ConfigError:
            continue
        rewrite_file(config)
        assert meant(load([str(path)], {}).config) == meant(config), word
