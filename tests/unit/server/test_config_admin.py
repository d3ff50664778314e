"""CONFIG SET that can't be applied is put back."""

from __future__ import annotations

from disque.errors import CommandError
from tests.unit.server.world import running


async def test_value_that_cannot_be_applied_is_put_back() -> None:
    async with running() as world:
        before = world.config.maxclients

        def refuse(name: str, _: object) -> None:
            raise CommandError(f"no {name}")

        world.shell.apply_setting = refuse
        peer = world.connect()
        await peer.ask(b"CONFIG SET maxclients 77\r\n", b"-ERR no maxclients\r\n")
        assert world.config.maxclients == before
        await peer.ask(b"CONFIG SET maxclients %d\r\n" % before, b"+OK\r\n")  # nothing to apply
