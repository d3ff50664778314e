"""`help`: how a command is called, ours or the server's; on the command line and at the prompt."""

from __future__ import annotations

import click

from disque.cli.grammar import USAGE
from disque.cli.main import cli
from disque.cli.render import say


@click.command("help")
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def help_command(words: tuple[str, ...]) -> None:
    """Show how a command is called, ours or the server's."""
    found: click.Command | None = cli
    context = click.Context(cli, info_name="disque")
    for word in words:
        found = found.get_command(context, word) if isinstance(found, click.Group) else None
        if found is None:
            break
        context = click.Context(found, info_name=word, parent=context)
    if found is not None:
        say(found.get_help(context))
    elif (name := words[0].upper()) in USAGE:
        say(f"{name} {USAGE[name]}".rstrip())
    else:
        raise click.UsageError(f"{' '.join(words)!r} is not known here; the server may know it")
