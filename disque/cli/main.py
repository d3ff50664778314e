"""Main: the command line of `disque`: our own commands by their lower-case names, all else is the server's.

Our commands are imported when they are used: `disque PING` must not wait for what `top` needs. Nothing here knows
what a command does.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

import disque
from disque.cli.command import Style, run, run_lines
from disque.cli.connection import Connection
from disque.cli.exits import PIPE_BROKEN
from disque.cli.grammar import SUBCOMMANDS, USAGE, USAGES
from disque.cli.settings import Settings, connection_options

EPILOG = """\
\b
  disque ADDJOB mail hello 5000           add a job; prints its id
  disque GETJOB FROM mail                 wait for one
  disque -X BODY ADDJOB mail BODY 5000 <file   the argument that is BODY comes from the file
  disque nodes                            who is in the cluster
"""


class Passthrough(click.Command):
    """A command of the server: every word behind it belongs to it, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words as they are."""
        ctx.args = list(args)
        return []

    def invoke(self, ctx: click.Context) -> Any:
        """Send it and show the reply."""
        words = [os.fsencode(word) for word in (self.name or "", *ctx.args)]
        given = _group_params(ctx)
        if given["is_last_from_stdin"]:
            words.append(sys.stdin.buffer.read())
        elif given["tag"] is not None:
            words = _fill_in(words, given["tag"])
        with _connect(ctx, given) as connection:
            return run(
                connection,
                words,
                _style(ctx, given),
                times=given["times"],
                every_s=given["every_s"],
            )


class Tool(click.Group):
    """Our commands by name, lazily; the server's for any other word."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Ours, in the order of SUBCOMMANDS."""
        del ctx
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of ours, or None."""
        del ctx
        module = SUBCOMMANDS.get(cmd_name)
        if module is None:
            return None
        found: click.Command = getattr(
            importlib.import_module(f"disque.cli.{module}"), f"{cmd_name}_command"
        )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Ours if it has that very name, else the server's."""
        command = self.get_command(ctx, args[0])
        return args[0], command or Passthrough(args[0]), args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; when nobody reads the output any more, end quietly, as a program does that SIGPIPE ends."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered must not complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(PIPE_BROKEN) from None
        return status

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Ours with a line each, then the names of the server's."""
        super().format_commands(ctx, formatter)
        with formatter.section(
            "Commands of the server (any other word is one; case doesn't matter)"
        ):
            formatter.write_dl([(group, " ".join(names)) for group, names in USAGES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Ours, then the server's, in the case that was begun."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete and not incomplete.startswith("-"):
            names = [name.lower() if incomplete.islower() else name for name in USAGE]
            found += [
                CompletionItem(name, help=USAGE[name.upper()])
                for name in names
                if name.startswith(incomplete)
            ]
        return found


@click.command(
    cls=Tool,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@connection_options(hidden=False)
@click.option("-x", "is_last_from_stdin", is_flag=True, help="Read the last argument from stdin.")
@click.option("-X", "tag", metavar="TAG", help="Read the argument that is TAG from stdin.")
@click.option("-r", "times", default=1, metavar="N", help="Run the command N times (-1: for ever).")
@click.option("-i", "every_s", default=0.0, metavar="SECONDS", help="Pause between with -r.")
@click.option(
    "--raw/--no-raw", "is_raw", default=None, help="Replies as bytes (default in a pipe)."
)
@click.option("-3", "is_resp3", is_flag=True, help="Speak RESP3 to the server.")
@click.version_option(disque.__version__, prog_name="disque", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, /, **_: Any) -> int | None:
    """Talk to a disque-broker cluster.

    Without a command: a prompt, or, if input isn't a terminal, the commands it has, one a line. Any word that is none
    of the commands below is sent to the server as it stands, and the reply is shown: types and quotes on a terminal,
    bare bytes in a pipe. Exit status: 0 done, 1 error of the server, 2 wrong usage, 3 no connection, 4 time is up.
    """
    ctx.ensure_object(Settings)
    if ctx.invoked_subcommand is not None:
        return None
    given = _group_params(ctx)
    style = _style(ctx, given)
    if sys.stdin.isatty():
        from disque.cli.repl import Repl

        return Repl(ctx, lambda: _connect(ctx, given), style).run()
    with _connect(ctx, given) as connection:
        return run_lines(connection, sys.stdin.buffer, style)


def _fill_in(words: list[bytes], tag: str) -> list[bytes]:
    """Put standard input in the place of the one argument that is the tag."""
    name = os.fsencode(tag)
    if words.count(name) != 1:
        raise click.UsageError(f"-X {tag}: one argument must be {tag!r}, {words.count(name)} are")
    words[words.index(name)] = sys.stdin.buffer.read()
    return words


def _group_params(ctx: click.Context) -> dict[str, Any]:
    """The group's own options, seen from it or from a command below it."""
    return ctx.find_root().params


def _style(ctx: click.Context, given: dict[str, Any]) -> Style:
    return Style(ctx.ensure_object(Settings).is_json, given["is_raw"])


def _connect(ctx: click.Context, given: dict[str, Any]) -> Connection:
    settings = ctx.ensure_object(Settings)
    connection = Connection(settings.target(), protocol=3 if given["is_resp3"] else 2)
    if settings.is_json and not given["is_resp3"]:
        # For its maps; a server that doesn't know RESP3 says so, and goes on.
        connection.ask("HELLO", 3)
    return connection
