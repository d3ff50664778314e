"""`help`: how a command is called, ours or the server's; on the command line and at the prompt."""

from __future__ import annotations

import click

from disque.cli.grammar import USAGE, USAGES
from disque.cli.main import SUBCOMMANDS, cli
from disque.cli.render import say


@click.command("help")
@click.argument("command", required=False)
def help_command(command: str | None) -> None:
    """Show how a command is called, ours or the server's."""
    root = click.Context(cli, info_name="disque")
    if command is None:
        say(cli.get_help(root))
    elif command in SUBCOMMANDS:
        assert isinstance(cli, click.Group)
        ours = cli.get_command(root, command)
        assert ours is not None
        say(ours.get_help(click.Context(ours, info_name=command, parent=root)))
    elif command.upper() in USAGE:
        say(f"{command.upper()} {USAGE[command.upper()]}".rstrip())
    else:
        raise click.UsageError(f"{command!r} is not known here; the server may know it")


def names() -> str:
    """All commands by group, for the prompt."""
    groups = [f"{group + ':':9}{' '.join(words)}" for group, words in USAGES.items()]
    ours = f"{'Ours:':9}{' '.join(SUBCOMMANDS)}"
    return "\n".join([*groups, ours, "help COMMAND shows how it is called"])
