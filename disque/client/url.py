"""URLs of clusters: `disque://[user][:password@]host[:port][;host[:port]...][?option=value&...]`.

Several nodes are several hosts, each with or without `disque://` before it. User and password stand before any of
them (percent-encoded) and hold for all. The options are those of `Options`, by name, times in seconds. With
`disques://` all connections are under TLS, and the fields of `Tls` are options, too: `tls_ca=/path/of/ca.pem`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import attrs

DEFAULT_PORT: Final = 7711
SCHEME: Final = "disque://"
TLS_SCHEME: Final = "disques://"
_TLS_PREFIX: Final = "tls_"
_NO_HOST: Final = (
    "no host:port behind the @; in a password all but letters and digits is percent-encoded"
)


@attrs.frozen(order=True)
class Address:
    """Where a node is asked."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _positive(_: Any, field: attrs.Attribute[float], given: float) -> None:
    if not 0 < given < float("inf"):
        raise ValueError(f"{field.name} must be seconds above 0, got {given!r}")


@attrs.frozen
class Options:
    """How patient a client is; all times in seconds.

    `connect_timeout` is for a connection and its greeting; `reply_timeout` for a reply, beyond what the command itself
    may wait: then the node counts as lost. `failover_timeout` is how long a call goes on while no node can be reached.
    `poll` is how long one GETJOB waits at a node before the client looks around; `refresh` how old its view of the
    cluster may get. `discover` off: only the nodes of the URL are used.
    """

    connect_timeout: float = attrs.field(default=2.0, validator=_positive)
    reply_timeout: float = attrs.field(default=5.0, validator=_positive)
    failover_timeout: float = attrs.field(default=10.0, validator=_positive)
    poll: float = attrs.field(default=10.0, validator=_positive)
    refresh: float = attrs.field(default=30.0, validator=_positive)
    discover: bool = True


@attrs.frozen
class Tls:
    """Whom to believe, and who we are: paths of PEM files. `ca` "" is the system's authorities.

    `verify` off believes anybody: for trying things out.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """For all connections. ValueError names a file that can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise ValueError(f"tls_ca can't be {self.ca!r}: {error}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert or self.key:
            try:
                context.load_cert_chain(self.cert, self.key or None)
            except OSError as error:
                files = f"tls_cert {self.cert!r} and tls_key {self.key!r}"
                raise ValueError(f"{files} can't be used: {error}") from None
        return context


@attrs.frozen
class Endpoint:
    """A cluster as a URL tells it: nodes to begin with, credentials, options; `tls` None is plain TCP."""

    addresses: tuple[Address, ...]
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    options: Options = Options()
    tls: Tls | None = None

    @classmethod
    def of(cls, url: str | Endpoint, options: Mapping[str, Any]) -> Endpoint:
        """What a client is made for: a URL, and options that win over the URL's; TypeError for an unknown one."""
        if isinstance(url, Endpoint):
            return url._with(options)
        if not isinstance(url, str):
            # not shown: it may hold a password
            raise TypeError(f"a URL is str, disque://host:port;host:port, got {type(url).__name__}")
        return parse_url(url)._with(options)

    def _with(self, given: Mapping[str, Any]) -> Endpoint:
        of_tls = {
            name.removeprefix(_TLS_PREFIX): value
            for name, value in given.items()
            if name.startswith(_TLS_PREFIX)
        }
        others = {name: value for name, value in given.items() if not name.startswith(_TLS_PREFIX)}
        for known, found in ((Options, others), (Tls, of_tls)):
            prefix = _TLS_PREFIX if known is Tls else ""
            for name in found:
                if name not in attrs.fields_dict(known):
                    raise TypeError(f"no option {prefix + name!r}: there are {', '.join(_READERS)}")
        if of_tls and self.tls is None:
            raise ValueError(f"{', '.join(given)} need {TLS_SCHEME}")
        tls = None if self.tls is None else attrs.evolve(self.tls, **of_tls)
        return attrs.evolve(self, options=attrs.evolve(self.options, **others), tls=tls)

    def at(self, address: Address | str) -> Endpoint:
        """The same for one node alone."""
        if isinstance(address, str):
            address = parse_address(address)
        alone = attrs.evolve(self.options, discover=False)
        return attrs.evolve(self, addresses=(address,), options=alone)


def parse_url(url: str) -> Endpoint:
    """Read a URL. ValueError names what can't be understood, never the password."""
    text, _, query = url.strip().partition("?")
    username = password = ""
    addresses: dict[Address, None] = {}
    is_tls = text.startswith(TLS_SCHEME)
    scheme = TLS_SCHEME if is_tls else SCHEME
    rest = url.strip()
    for part in text.split(";"):
        rest = rest[len(part) + 1 :]
        place = part.strip().removeprefix(scheme)
        if "://" in place:
            # with more to come that has an @, it may be the beginning of a password
            got = place.partition("://")[0] + "://" if "@" in rest else part
            raise ValueError(f"a node is {scheme}host:port, got {got.rpartition('@')[2]!r}")
        credentials, _, place = place.rpartition("@")
        if credentials:
            username, password = _credentials(credentials)
        try:
            place, _, database = place.partition("/")
            if database.strip("/") not in ("", "0"):
                raise ValueError(
                    f"there are no databases: a URL ends with the port, got '/{database}'"
                )
            if place:
                addresses[parse_address(place)] = None
        except ValueError:
            if "@" in rest:  # so it is the beginning of a password
                raise ValueError(_NO_HOST) from None
            raise
    if not addresses:
        raise ValueError(f"no host in {text.rpartition('@')[2]!r}: {SCHEME}host:port is wanted")
    tls = Tls() if is_tls else None
    return Endpoint(tuple(addresses), username, password, tls=tls)._with(_options(query))


def parse_address(text: str) -> Address:
    """`host`, `host:port`, `[v6]:port`. ValueError if it is none of these."""
    if "," in text:
        raise ValueError(f"several nodes are joined by ';', got {text!r}")
    host, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, digits = text, str(DEFAULT_PORT)
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = host == f"[{bare}]"
    if not bare or any(char in bare for char in "[] /@") or (":" in bare and not is_bracketed):
        raise ValueError(f"no host:port: {text!r}")
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 65_536:
        raise ValueError(f"a port is 1 to 65535, got {digits!r} in {text!r}")
    return Address(bare, int(digits))


def _credentials(text: str) -> tuple[str, str]:
    username, colon, password = text.partition(":")
    if not colon:
        # `disque://secret@host`: as in Disque, a lone word is the password
        username, password = "", username
    return unquote(username), unquote(password)


def _options(query: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if "@" in name:
            raise ValueError(_NO_HOST)
        if name not in _READERS:
            raise ValueError(f"no option {name!r}: there are {', '.join(_READERS)}")
        try:
            given[name] = _READERS[name](text)
        except ValueError:
            raise ValueError(f"{name} can't be {text!r}") from None
    return given


def _switch(text: str) -> bool:
    words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "connect_timeout": float,
    "reply_timeout": float,
    "failover_timeout": float,
    "poll": float,
    "refresh": float,
    "discover": _switch,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_verify": _switch,
}
