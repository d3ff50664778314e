"""Settings: where to connect, as whom and how to show things; from options, the environment, and nothing else.

The same options are taken before a command and behind it, so that both `disque -p 7712 nodes` and
`disque nodes -p 7712` work.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
from click.core import ParameterSource

from disque.cli.connection import (
    DEFAULT_PORT,
    NO_PASSWORD_HINT,
    Address,
    Connection,
    Target,
    parse_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from disque.client.url import Endpoint, Tls

PORT_MAX = 65_535
PASSWORD_NAMES = ("DISQUE_PASSWORD", "DISQUE_AUTH")  # of the environment; the first that is set
URL_NAME = "DISQUE_URL"
F = TypeVar("F", bound="Callable[..., Any] | click.Command")


class PortNumber(click.IntRange):
    """A port on the command line."""

    def __init__(self) -> None:
        super().__init__(1, PORT_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; it fails for anything that is no port."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"a port is 1 to {PORT_MAX}, got {value!r}", param, ctx)


@attrs.define
class Settings:
    """What the options said; None where nothing was said. Lives in click's `ctx.obj`."""

    host: str | None = None
    port: int | None = None
    socket: str | None = None
    user: str | None = None
    password: str | None = None
    url: str | None = None
    is_tls: bool = False
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    is_insecure: bool = False
    is_json: bool = False

    def target(self, environment: Mapping[str, str] | None = None) -> Target:
        """Where to connect: the URL, and what single options say instead of its parts."""
        given = os.environ if environment is None else environment
        url = self.url or given.get(URL_NAME)
        found = parse_url(url) if url else Target()
        if self.socket is not None:
            found = found.at(Address(path=self.socket))
        elif self.host is not None or self.port is not None:
            first = found.addresses[0]
            found = found.at(Address(self.host or first.host, self.port or first.port))
        password = self.password
        if password is None and found.password is None:
            password = next((given[name] for name in PASSWORD_NAMES if name in given), None)
        if password is not None:
            found = attrs.evolve(found, password=password)
        if self.user is not None:
            found = attrs.evolve(found, user=self.user)
        if self.user and not found.password:
            raise click.UsageError(f"--user {self.user} without a password: {NO_PASSWORD_HINT}")
        return attrs.evolve(found, tls=self._tls(found.tls))

    @property
    def names_nodes(self) -> bool:
        """True if an option or the environment says where to connect."""
        said = (self.host, self.port, self.socket, self.url, os.environ.get(URL_NAME))
        return any([each is not None for each in said])

    def endpoint(self) -> Endpoint:
        """The same for disque.client, with the options of the URL. click.UsageError for a Unix socket."""
        from disque.client.url import Address as NodeAddress
        from disque.client.url import Endpoint, Options, parse_url

        found = self.target()
        if found.addresses[0].path:
            raise click.UsageError("a Unix socket will do for commands only; name a host and port")
        url = self.url or os.environ.get(URL_NAME)
        addresses = tuple([NodeAddress(each.host, each.port) for each in found.addresses])
        options = parse_url(url).options if url else Options()
        return Endpoint(addresses, found.user, found.password or "", options, found.tls)

    def _tls(self, given: Tls | None) -> Tls | None:
        """TLS as the URL has it, with what single options say."""
        said = {"ca": self.cacert, "cert": self.cert, "key": self.key}
        if given is None and not self.is_tls:
            if self.is_insecure or any([path is not None for path in said.values()]):
                raise click.UsageError(
                    "options of TLS without TLS: say --tls, too, or disques:// in the URL"
                )
            return None
        from disque.client.url import Tls

        changed: dict[str, Any] = {name: path for name, path in said.items() if path is not None}
        if self.is_insecure:
            changed["verify"] = False
        return attrs.evolve(given or Tls(), **changed)

    def connect(self, *, reply_timeout_s: float | None = None) -> Connection:
        """Open a connection to the node that was named. Raises ConnectionFailed and ServerError."""
        return Connection(self.target(), reply_timeout_s=reply_timeout_s)


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _remember(ctx: click.Context, param: click.Parameter, given: Any) -> Any:
    """Keep an option's value, wherever it stood, if it was given at all."""
    name = param.name or ""
    if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
        setattr(ctx.ensure_object(Settings), name, given)
    return given


def _option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, **more)


def connection_options(*, hidden: bool) -> Callable[[F], F]:
    """Adds -h, -p, -s, -u, --user, -a, those of TLS, and --json; they end up in Settings."""
    options: list[Callable[[Any], Any]] = [
        _option("-h", "--host", metavar="HOST", help="Host of a node (127.0.0.1).", hidden=hidden),
        _option(
            "-p",
            "--port",
            type=PortNumber(),
            metavar="PORT",
            help=f"Its port ({DEFAULT_PORT}).",
            hidden=hidden,
        ),
        _option("-s", "--socket", metavar="PATH", help="Unix socket of a node.", hidden=hidden),
        _option(
            "-u",
            "--url",
            metavar="URL",
            help=f"disque://[user][:password@]host:port, several joined by ';' (${URL_NAME}).",
            hidden=hidden,
        ),
        _option(
            "-a",
            "--password",
            metavar="PASSWORD",
            help="Better given in $DISQUE_PASSWORD or $DISQUE_AUTH, where ps doesn't show it.",
            hidden=hidden,
        ),
        _option("--user", metavar="NAME", help="Name to log in with.", hidden=hidden),
        _option(
            "--tls", "is_tls", is_flag=True, help="Speak TLS (as with disques://).", hidden=hidden
        ),
        _option("--cacert", metavar="FILE", help="Whom to believe (the system).", hidden=hidden),
        _option("--cert", metavar="FILE", help="Our certificate, with --key.", hidden=hidden),
        _option("--key", metavar="FILE", help="Its key.", hidden=hidden),
        _option("--insecure", "is_insecure", is_flag=True, help="Believe anybody.", hidden=hidden),
        _option("--json", "is_json", is_flag=True, help="Answer in JSON.", hidden=hidden),
    ]

    def decorate(target: F) -> F:
        for option in reversed(options):
            target = option(target)
        return target

    return decorate


def common(target: F) -> F:
    """For a sub-command: the connection options once more, and the Settings as its first argument."""
    return connection_options(hidden=True)(pass_settings(target))  # type: ignore[return-value]
