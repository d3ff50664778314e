"""`worker`, `local`, `completion`: what starts something else."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from disque.cli.render import say
from disque.cli.settings import common

if TYPE_CHECKING:
    from disque.cli.settings import Settings

SHELLS = ("bash", "zsh", "fish")
NODES_MAX = 100


class JsonLines(logging.Formatter):
    """A log line as JSON: time, level, message, and the facts of a job where the line is about one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        facts = getattr(record, "disque", None) or {"message": record.getMessage()}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = {"time": stamp, "level": record.levelname.lower(), **facts}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@click.command("worker")
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Whose jobs; repeat for more, the first is served first.",
)
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), metavar="N", help="Jobs at a time (8)."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="For one job; then it is given back.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="For jobs at hand when it is told to stop (30).",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=1),
    metavar="N",
    help="Then a failed job is a dead letter.",
)
@click.option("--dead-letter", metavar="QUEUE", help="Where dead letters go (dead-letters).")
@click.option(
    "--processes",
    "in_process",
    is_flag=True,
    default=None,
    help="Run a function in processes, not threads.",
)
@click.option("-v", "--verbose", is_flag=True, help="With the tracebacks of jobs that failed.")
@common
def worker_command(
    settings: Settings, target: str, queues: tuple[str, ...], verbose: bool, **given: Any
) -> None:
    """Run a Python function for each job of some queues.

    Or a disque.client.worker.Worker as it is, its URL included if it has one. The function gets a Job (id, queue, body
    ...). When it returns, the job is acknowledged; when it raises, given back with a growing delay. Modules of the
    working directory count. SIGTERM and Ctrl-C stop it when what is at hand is done; the log, one line a job, goes to
    standard error.

    \b
      disque worker tasks:send_mail --queue mail --concurrency 20
    """
    from disque.client.worker import worker_for

    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines()
        if settings.is_json
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        endpoint = settings.endpoint()
        worker = worker_for(target, endpoint, *queues, **chosen)
        own = worker.client.session.endpoint
        if settings.names_nodes and own.addresses != endpoint.addresses:
            nodes = ";".join(map(str, own.addresses))
            logging.getLogger("disque.worker").warning(
                "%s has a URL of its own, which counts: nodes=%s", target, nodes
            )
        worker.run()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@click.command("local")
@click.option(
    "--nodes", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="How many."
)
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 55_434),
    default=7711,
    show_default=True,
    help="Of the first one.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Folder of their files.",
)
def local_command(nodes: int, port: int, folder: Path) -> int:
    """Run some nodes on this machine, for a first look.

    They know each other. Ctrl-C ends them.
    """
    from disque.server.local import main

    return main(["--nodes", str(nodes), "--port", str(port), "--dir", str(folder)])


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script of completion for a shell.

    \b
      bash: eval "$(disque completion bash)"       in ~/.bashrc
      zsh:  eval "$(disque completion zsh)"        in ~/.zshrc
      fish: disque completion fish | source        in ~/.config/fish/config.fish
    """
    from disque.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    say(found(cli, {}, "disque", "_DISQUE_COMPLETE").source())
