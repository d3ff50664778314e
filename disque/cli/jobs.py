"""`jobs`: list, show, requeue, cancel; by id, or by queue and state."""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import attrs
import click

from disque.cli.joblist import STATES, JobView, check_id, find_jobs, job_json, look_up, name_bytes
from disque.cli.render import BODY_CHARS_MAX, counted, duration, note, say, say_json, shown
from disque.cli.settings import common, connection_options
from disque.cli.survey import Survey
from disque.cli.tables import show_table
from disque.client import results

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from disque.cli.settings import Settings

COLUMNS = ("ID", "STATE", "QUEUE", "AGE", "TTL", "DUE", "TRIES", "BODY")
NUMBERS = "AGE TTL DUE TRIES"
OPTIONAL = ("TTL", "AGE", "TRIES", "DUE", "BODY")  # the first that a narrow terminal lacks first
LIMIT = 100
REASONS_MAX = 10  # why nothing was done, one a job
IDS_AT_ONCE = 200  # in one command
HEX_BYTES_A_LINE = 16
HEX_BYTES_MAX = 512
F = TypeVar("F", bound="Callable[..., object]")


def _filters(target: F) -> F:
    queue = click.option("-q", "--queue", metavar="QUEUE", help="Only jobs of this queue.")
    state = click.option(
        "--state", type=click.Choice(list(STATES)), help="Only jobs in this state."
    )
    return queue(state(target))


def _limit(target: F) -> F:
    return click.option(
        "--limit", type=click.IntRange(min=1), metavar="N", help=f"At most so many ({LIMIT})."
    )(target)


@click.group("jobs", invoke_without_command=True)
@_filters
@_limit
@connection_options(hidden=True)
@click.pass_context
def jobs_command(
    ctx: click.Context, /, queue: str | None, state: str | None, limit: int | None
) -> int | None:
    """Look at jobs, queue them again, cancel them.

    Without a command: list. States: queued, delivered (a worker has it), delayed (it waits for its time), wait-repl
    (its copies are still made), acked (done, not yet forgotten), dead (a dead letter, wherever it stands).
    """
    if ctx.invoked_subcommand is None:
        listed: int = ctx.invoke(list_command, queue=queue, state=state, limit=limit)
        return listed
    if queue or state or limit:
        raise click.UsageError(
            "--queue, --state and --limit go behind the command that they are for"
        )
    return None


@jobs_command.command("list")
@_filters
@_limit
@common
def list_command(
    settings: Settings, queue: str | None, state: str | None, limit: int | None
) -> int:
    """Show jobs of the cluster.

    --json gives one a line, with its body whole.
    """
    limit = limit or LIMIT
    with Survey(settings) as survey:
        views = list(islice(find_jobs(survey, _name(queue), state), limit + 1))
        if settings.is_json:
            for view in views[:limit]:
                say_json(job_json(view))
            return int(bool(survey.silent))
        now = time.time()
        rows = [_row(view, now) for view in views[:limit]]
        show_table(COLUMNS, rows, numbers=NUMBERS, optional=OPTIONAL, flexible="BODY")
        if len(views) > limit:
            click.echo(f"… and more; --limit shows more than {limit}", err=True)
        return int(not survey.tell_silent())


def _row(view: JobView, now: float) -> list[str]:
    best = view.best
    return [
        best.id,
        view.state + (" (dead)" if best.reason else ""),
        shown(_name(best.queue) or b"?"),
        duration(max(0, int(now - best.created_at))),
        duration(best.ttl),
        duration(view.due_in),
        str(best.deliveries if best.deliveries is not None else best.nacks),
        "-" if best.body is None else shown(best.body, BODY_CHARS_MAX),
    ]


@jobs_command.command("show")
@click.argument("id_", metavar="ID")
@click.option("--body", "is_body", is_flag=True, help="Only the body, byte for byte.")
@common
def show_command(settings: Settings, id_: str, is_body: bool) -> int:
    """Show all that the cluster knows of one job.

    Exit status 1 if no node knows it: it is done and forgotten, expired, or never was.
    """
    check_id(id_)
    with Survey(settings) as survey:
        views = look_up(survey, [id_])
        if not views:
            survey.tell_silent()
            raise click.ClickException(f"no node that answered knows {id_}")
        view = views[0]
        if is_body:
            click.echo(view.best.body or b"", nl=False)
        elif settings.is_json:
            say_json(job_json(view))
        else:
            _show(view)
        return 0 if settings.is_json else int(not survey.tell_silent())


def _show(view: JobView) -> None:
    told = job_json(view)
    body, copies, holders = told.pop("body"), told.pop("copies"), told.pop("holders")
    headers = told.pop("headers")
    for name in ("ttl", "due_in", "delay", "retry"):
        told[name] = duration(told[name])
    told["created_at"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["created_at"]))
    rows = [[name.replace("_", " "), _value(value)] for name, value in told.items()]
    rows += [[f"header {_value(name)}", _value(value)] for name, value in headers]
    rows += [
        [f"at {node[:8]}", copies.get(node, "not known there, or not asked")] for node in holders
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:{width}}  {value}")
    say(f"{'body':{width}}  " + ("-" if body is None else counted(len(body), "byte")))
    if body:
        say("\n" + body_text(body))


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return shown(value)
    return "-" if value is None else str(value)


def body_text(body: bytes) -> str:
    """A body to be read: JSON indented, text as it is, anything else as a hex dump of its beginning."""
    try:
        text = body.decode()
        if all(char.isprintable() or char in "\n\t" for char in text):
            try:
                return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            except (ValueError, RecursionError):
                return text
    except UnicodeDecodeError:
        pass
    lines = []
    for at in range(0, min(len(body), HEX_BYTES_MAX), HEX_BYTES_A_LINE):
        part = body[at : at + HEX_BYTES_A_LINE]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):{3 * HEX_BYTES_A_LINE - 1}}  {plain}")
    if len(body) > HEX_BYTES_MAX:
        lines.append(f"… {counted(len(body) - HEX_BYTES_MAX, 'byte')} more; --body gives all")
    return "\n".join(lines)


@jobs_command.command("requeue")
@click.argument("ids", nargs=-1, metavar="[ID…]")
@_filters
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@common
def requeue_command(
    settings: Settings, ids: tuple[str, ...], queue: str | None, state: str | None, yes: bool
) -> int:
    """Queue jobs again at once, dead letters in their own queue.

    By ID (`-` reads them from standard input), or all of a queue and state. A job that a worker has now will be
    handed out twice.
    """
    return _act(settings, REQUEUE, ids, queue, state, yes)


def _requeue(survey: Survey, ids: Sequence[str]) -> int:
    """Each at the node that knows of most deliveries: another one could queue it without having heard of its lease."""
    nodes = {node.id: node.connection for node in survey.reached}
    shares: dict[str, list[str]] = {}
    for view in look_up(survey, ids):
        best = max(view.copies, key=lambda node: view.copies[node].deliveries or 0)
        shares.setdefault(best, []).append(view.best.id)
    done = 0
    for node, share in shares.items():
        connection = nodes.get(node) or survey.home
        done += connection.get(results.number, "REVIVE", *share)
        done += connection.get(results.number, "ENQUEUE", *share)
    return done


@jobs_command.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID…]")
@_filters
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@common
def cancel_command(
    settings: Settings, ids: tuple[str, ...], queue: str | None, state: str | None, yes: bool
) -> int:
    """End jobs everywhere without doing them.

    By ID (`-` reads them from standard input), or all of a queue and state. A node that is cut off hears of it when
    it is back.
    """
    return _act(settings, CANCEL, ids, queue, state, yes)


def _cancel(survey: Survey, ids: Sequence[str]) -> int:
    return survey.home.get(results.number, "CANCELJOB", *ids)


def _why_not_requeued(view: JobView) -> str:
    if view.state == "acked":
        return "it is done"
    if view.state == "wait-repl":
        return "its copies are still being made"
    queue = shown(name_bytes(view.best.queue) or b"")
    story = view.best.headers
    if {"id", "queue", "error"} <= story.keys():
        return (
            f"it waits in {queue} as a job of its own, that a worker's max_deliveries has made;"
            f" to do it once more, add its body to {shown(story['queue'])}"
        )
    return f"it waits in {queue} already"


@attrs.frozen
class Verb:
    """What can be done to several jobs; `act` returns for how many it came true, `why_not` is for those not meant."""

    word: str
    past: str
    is_meant: Callable[[JobView], bool]
    why_not: Callable[[JobView], str]
    act: Callable[[Survey, Sequence[str]], int]


REQUEUE = Verb(
    "requeue",
    "requeued",
    lambda view: view.state in ("delivered", "delayed") or view.best.reason is not None,
    _why_not_requeued,
    _requeue,
)
CANCEL = Verb(
    "cancel", "cancelled", lambda view: view.state != "acked", lambda _: "it is done", _cancel
)


def _act(
    settings: Settings,
    verb: Verb,
    ids: tuple[str, ...],
    queue: str | None,
    state: str | None,
    is_sure: bool,
) -> int:
    """Do something to the jobs that are meant; exit status 1 if it did not come true for all of them."""
    given = _ids(ids)
    if bool(given) == bool(queue or state):
        raise click.UsageError(
            "name the jobs by ID, or by --queue and --state; not both, not neither"
        )
    with Survey(settings) as survey:
        views = look_up(survey, given) if given else find_jobs(survey, _name(queue), state)
        meant, others = list[str](), dict[str, str]()
        for view in views:
            if verb.is_meant(view):
                meant.append(view.best.id)
            else:
                others[view.best.id] = verb.why_not(view)
        wanted = given or meant
        if not given and wanted and not is_sure:
            if not sys.stdin.isatty():
                raise click.UsageError(
                    f"would {verb.word} {counted(len(wanted), 'job')}; say --yes if you mean it"
                )
            click.confirm(f"{verb.word.capitalize()} {counted(len(wanted), 'job')}?", abort=True)
        done = 0
        for start in range(0, len(wanted), IDS_AT_ONCE):
            chunk = [id_ for id_ in wanted[start : start + IDS_AT_ONCE] if id_ not in others]
            done += verb.act(survey, chunk) if chunk else 0
        is_whole = done == len(wanted) and (bool(given) or not survey.silent)
        if settings.is_json:
            say_json({"jobs": len(wanted), "done": done, "nodes_silent": len(survey.silent)})
        else:
            say(f"{verb.past} {done:,} of {counted(len(wanted), 'job')}")
            if given or not wanted:
                unknown = dict.fromkeys(given, "no node that was asked knows it")
                known = {**dict.fromkeys(meant), **others}
                _tell({**others, **{id_: why for id_, why in unknown.items() if id_ not in known}})
            if not given:
                survey.tell_silent()
        return int(not is_whole)


def _tell(reasons: Mapping[str, str]) -> None:
    """Why nothing was done to some jobs, to standard error; so many at most."""
    for id_, reason in islice(reasons.items(), REASONS_MAX):
        note(f"{id_}: {reason}")
    if len(reasons) > REASONS_MAX:
        note(f"and {counted(len(reasons) - REASONS_MAX, 'job')} more")


def _ids(given: tuple[str, ...]) -> list[str]:
    if given == ("-",):
        given = tuple(sys.stdin.read().split())
    return list(dict.fromkeys([check_id(each) for each in given]))


def _name(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
