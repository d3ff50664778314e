"""`nodes`, `forget`, `leave`: who is in the cluster, and how one goes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from disque.cli.exits import TIME_IS_UP
from disque.cli.render import counted, duration, note, say, say_json, size
from disque.cli.settings import common
from disque.cli.survey import Survey
from disque.cli.tables import show_table
from disque.client import results

if TYPE_CHECKING:
    from disque.cli.connection import Connection
    from disque.cli.settings import Settings
    from disque.cli.survey import Node

POLL_S = 0.5
STATE_STYLES = {
    "ok": "green",
    "leaving": "yellow",
    "suspect": "yellow",
    "no link": "yellow",
    "failed": "red",
}
COLUMNS = (
    "NODE",
    "ADDRESS",
    "STATE",
    "UP",
    "JOBS",
    "QUEUED",
    "DELIVERED",
    "DELAYED",
    "MEMORY",
    "CLIENTS",
    "OPS/S",
)
# Left out on a narrow terminal, the first ones first
OPTIONAL = ("CLIENTS", "OPS/S", "UP", "DELAYED")
NUMBERS = "UP JOBS QUEUED DELIVERED DELAYED MEMORY CLIENTS OPS/S"

# What `nodes` and `top` show of INFO: name there, name here.
FIGURES = {
    "registered_jobs": "jobs",
    "queued_jobs": "queued",
    "delivered_jobs": "delivered",
    "delayed_jobs": "delayed",
    "under_replicated_jobs": "under_replicated",
    "dead_lettered_total": "dead_lettered_total",
    "used_memory": "memory_bytes",
    "connected_clients": "clients",
    "instantaneous_ops_per_sec": "ops_per_second",
    "uptime_in_seconds": "uptime_s",
}


def info_of(connection: Connection) -> dict[str, str]:
    """INFO and CLUSTER INFO of one node."""
    server = connection.get(results.fields, "INFO")
    return {**server, **connection.get(results.fields, "CLUSTER", "INFO")}


def node_json(node: Node, info: dict[str, str] | None) -> dict[str, Any]:
    """A node as JSON; figures are null where it could not be asked."""
    told = info or {}
    build = told.get("disque_build_id", "")
    return {
        "id": node.id,
        "host": node.address.host,
        "port": node.address.port,
        "state": node.state,
        "is_asked": node.is_asked,
        "is_reached": info is not None,
        "complaint": node.complaint or None,
        "version": build.removeprefix("disque-broker-") or told.get("disque_version"),
        "is_safe_to_stop": told.get("cluster_safe_to_stop") == "1" if info else None,
        **{ours: int(told[theirs]) if theirs in told else None for theirs, ours in FIGURES.items()},
    }


def node_row(node: dict[str, Any]) -> list[str | Text]:
    """The same as a row of COLUMNS."""
    state = node["state"] if node["is_reached"] else f"{node['state']}, not reached"
    style = STATE_STYLES[node["state"]] if node["is_reached"] else "red"
    figures = [node[name] for name in ("jobs", "queued", "delivered", "delayed")]
    where = node["host"] or "?"
    return [
        node["id"][:8] + ("*" if node["is_asked"] else ""),
        f"[{where}]:{node['port']}" if ":" in where else f"{where}:{node['port']}",
        Text(state, style=style),
        duration(node["uptime_s"], is_rough=True),  # so that a row fits 100 columns
        *[_count(figure) for figure in figures],
        "-" if node["memory_bytes"] is None else size(node["memory_bytes"]),
        _count(node["clients"]),
        _count(node["ops_per_second"]),
    ]


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


@click.command("nodes")
@common
def nodes_command(settings: Settings) -> int:
    """Show the nodes of the cluster.

    Each is asked itself; * marks the one that was named. Exit status 1 if one of them could not be asked.
    """
    with Survey(settings) as survey:
        infos = survey.each(info_of)
        found = [node_json(node, infos.get(node.id)) for node in survey.nodes]
        if settings.is_json:
            say_json(found)
            return int(bool(survey.silent))
        rows = [node_row(node) for node in found]
        show_table(COLUMNS, rows, numbers=NUMBERS, optional=OPTIONAL)
        return int(not survey.tell_silent())


@click.command("forget")
@click.argument("node")
@click.option("--here", is_flag=True, help="Only the node that is asked forgets it.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask, even if the node is alive.")
@common
def forget_command(settings: Settings, node: str, here: bool, yes: bool) -> None:
    """Forget a node that won't come back.

    NODE is its id, the beginning of it, or host:port. It is final for that id: acks no longer wait for it, its copies
    are made again elsewhere.
    """
    with Survey(settings) as survey:
        found = find_node(survey, node)
        if found.is_asked:
            raise click.UsageError(
                f"{node} is the node that is asked; name another one with -h and -p"
            )
        if found.connection is not None and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"{found.id[:8]} is alive; say --yes if you mean it")
            click.confirm(
                f"{found.id[:8]} {found.address} is alive. Forget it for good?", abort=True
            )
        survey.home.call("CLUSTER", "FORGET", found.id, *([] if here else ["ALL"]))
        if settings.is_json:
            say_json({"forgotten": found.id, "everywhere": not here})
        else:
            say(
                f"forgotten: {found.id} {found.address}" + (" (by this node alone)" if here else "")
            )


def find_node(survey: Survey, text: str) -> Node:
    """The one node whose id begins so, or whose address this is; click.BadParameter for none or several."""
    found = [
        node
        for node in survey.nodes
        if (len(text) >= 4 and node.id.startswith(text.lower())) or str(node.address) == text
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{node.id[:8]} ({node.address})" for node in survey.nodes)
    what = "is several nodes" if found else "is no node of this cluster"
    raise click.BadParameter(f"{text!r} {what}; there are {known}", param_hint="NODE")


@click.command("leave")
@click.argument("node", required=False)
@click.option("--wait", is_flag=True, help="Return when the node can be stopped without loss.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.")
@click.option("--cancel", is_flag=True, help="Stay in the cluster after all.")
@common
def leave_command(
    settings: Settings, node: str | None, wait: bool, timeout: float | None, cancel: bool
) -> int | None:
    """Let a node hand everything over and leave.

    NODE, or the one that is asked, takes no new jobs and gives its copies to others. Ctrl-C ends the wait, not the
    leaving. With --timeout, exit status 4 says that it wasn't ready in time.
    """
    if cancel and (wait or timeout is not None):
        raise click.UsageError("--cancel has nothing to wait for")
    with Survey(settings) as survey:
        found = (
            find_node(survey, node)
            if node
            else next(each for each in survey.nodes if each.is_asked)
        )
        if found.connection is None:
            raise click.ClickException(f"{found.id[:8]} {found.address}: {found.complaint}")
        found.connection.call("CLUSTER", "LEAVING", "no" if cancel else "yes")
        if cancel:
            _tell_leaving(settings, found, "stays", is_safe=False)
        elif wait or timeout is not None:
            return _wait_safe(settings, found, timeout)
        else:
            _tell_leaving(settings, found, "is leaving", is_safe=False)
    return None


def _wait_safe(settings: Settings, node: Node, timeout_s: float | None) -> int:
    assert node.connection is not None
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = ""
    while True:
        info = info_of(node.connection)
        if info.get("cluster_safe_to_stop") == "1":
            _tell_leaving(settings, node, "can be stopped now", is_safe=True)
            return 0
        if deadline is not None and time.monotonic() >= deadline:
            _tell_leaving(settings, node, "is leaving, not yet safe to stop", is_safe=False)
            return TIME_IS_UP
        now = f"{counted(int(info.get('registered_jobs', 0)), 'job')} left"
        if now != told and sys.stderr.isatty():
            note(now)
            told = now
        time.sleep(POLL_S)


def _tell_leaving(settings: Settings, node: Node, what: str, *, is_safe: bool) -> None:
    if settings.is_json:
        say_json({"id": node.id, "is_leaving": what != "stays", "is_safe_to_stop": is_safe})
        return
    say(f"{node.id} {node.address} {what}")
    if is_safe:
        note(f"once it is stopped: disque forget {node.id[:8]}")
