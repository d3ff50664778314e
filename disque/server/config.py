"""Config: every setting of a node, with its default; the one list that all readers share.

The class body is the table: name, type, default, kind, help, whether CONFIG SET may change it, in
the order of CONFIG GET (Disque's first, then what it doesn't show, then ours). `configfile` reads
the file, the environment and the flags into it. Nothing here acts on a change: `set` says which
setting changed, and the server does the rest.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from disque.core.integers import INT64_MAX
from disque.errors import CommandError, ConfigError
from disque.server.addresses import is_loopback
from disque.server.directives import (
    BUS_PORT_OFFSET,
    DEFAULT_PORT,
    PAGE_PORT_OFFSET,
    PORT_MAX,
    AutoPort,
    BufferLimit,
    BufferLimits,
    Choice,
    Directive,
    FileName,
    FilePath,
    Folder,
    Host,
    Integer,
    JoinAddress,
    JoinAddresses,
    KeepAlive,
    Kind,
    Memory,
    Permissions,
    Renames,
    Text,
    Users,
    Words,
    YesNo,
    without_brackets,
)
from disque.server.table import COMMANDS, NAME_BYTES_SHOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from disque.server.acl import User
    from disque.server.dialmap import Address

PIDFILE_DEFAULT = "/var/run/disque.pid"
_GLOB_CHARS_MAX = 256  # of a CONFIG GET pattern; longer ones match nothing
_WORD_BYTES_MAX = 512  # of a password or secret; Disque's


def _setting(default: object, kind: Kind, text: str, **more: Any) -> Any:
    """A field of Config that is a directive; its name is the field's."""
    return attrs.field(default=default, metadata=_metadata(kind, text, **more))


def _metadata(kind: Kind, text: str, **more: Any) -> dict[str, Any]:
    """What makes a field a directive."""
    return {"directive": (kind, text, more)}


def _live(default: object, kind: Kind, text: str, **more: Any) -> Any:
    """A directive that CONFIG SET may change."""
    return _setting(default, kind, text, is_settable=True, **more)


_YES_NO = YesNo()
_PORT = Integer(1, PORT_MAX)
_PORT_OR_DEFAULT = Integer(0, PORT_MAX)
_COUNT = Integer(1)


@attrs.define(eq=False)
class Config:
    """A node's settings as attributes (dashes become underscores), in the units of the file."""

    # What CONFIG GET of Disque shows, in its order
    requirepass: str = _live(
        "",
        Text(bytes_max=_WORD_BYTES_MAX),
        "Password that clients must give.",
        is_secret=True,
        is_masked=True,
    )
    unixsocket: str = _setting("", Text(), "Path of a socket to listen at too.")
    logfile: str = _setting("", Text(), "File for the log; empty: standard output.")
    pidfile: str = _setting(
        PIDFILE_DEFAULT, Text(), "File for the process id; the default isn't written."
    )
    maxmemory: int = _live(1 << 30, Memory(), "Accounted memory; 0: no limit.", unit="bytes")
    maxmemory_samples: int = _live(5, _COUNT, "Kept for Disque's files; unused.")
    timeout: int = _live(0, Integer(), "Drop clients idle for so long; 0: never.", unit="s")
    auto_aof_rewrite_percentage: int = _live(100, Integer(), "Growth that starts a rewrite.")
    auto_aof_rewrite_min_size: int = _live(
        64 << 20, Memory(are_units_live=False), "No rewrite of a smaller log.", unit="bytes"
    )
    slowlog_log_slower_than: int = _live(
        10_000, Integer(-1, INT64_MAX, 0), "Commands that SLOWLOG keeps.", unit="us"
    )
    latency_monitor_threshold: int = _live(0, Integer(), "Events LATENCY keeps.", unit="ms")
    slowlog_max_len: int = _live(128, Integer(0, 1_000_000), "Entries of SLOWLOG.")
    port: int = _setting(DEFAULT_PORT, _PORT, "Port for clients.")
    tcp_backlog: int = _setting(511, Integer(), "Connections that wait to be accepted.")
    databases: int = _setting(16, _COUNT, "Kept for Disque's files; unused.")
    maxclients: int = _live(10_000, _COUNT, "Connections served at a time.")
    watchdog_period: int = _live(0, Integer(), "Kept for Disque's files; unused.", unit="ms")
    hz: int = _live(10, Integer(1, 500, is_clamped=True), "No effect: timers are exact.")
    cluster_node_timeout: int = _live(
        15_000, _COUNT, "Silence after which a node is suspected.", unit="ms"
    )
    tcp_keepalive: int = _live(0, KeepAlive(), "Time between TCP probes; 0: none.", unit="s")
    no_appendfsync_on_rewrite: bool = _setting(False, _YES_NO, "Kept for Disque's files; unused.")
    daemonize: bool = _setting(False, _YES_NO, "Not offered: use a service manager.")
    activerehashing: bool = _live(True, _YES_NO, "Kept for Disque's files; unused.")
    aof_rewrite_incremental_fsync: bool = _live(True, _YES_NO, "Kept for Disque's files; unused.")
    aof_load_truncated: bool = _live(True, _YES_NO, "Start with a log whose end is cut off.")
    aof_enqueue_jobs_once: bool = _live(False, _YES_NO, "Queue jobs of the log at one start.")
    maxmemory_policy: str = _live(
        "acks", Choice(("acks", "noeviction")), "What is forgotten when memory is short."
    )
    loglevel: str = _live(
        "notice", Choice(("debug", "verbose", "notice", "warning")), "What the log tells."
    )
    appendfsync: str = _live(
        "everysec", Choice(("everysec", "always", "no")), "When the log is forced to disk."
    )
    syslog_facility: str = _setting(
        "local0", Choice(("user", *(f"local{n}" for n in range(8)))), "Facility for syslog."
    )
    appendonly: bool = _live(False, _YES_NO, "Keep jobs in a log on disk.")
    dir: str = attrs.field(
        factory=lambda: str(Path.cwd()),
        metadata=_metadata(Folder(), "Folder of all our files.", is_settable=True),
    )
    client_output_buffer_limit: BufferLimit = attrs.field(
        factory=BufferLimit,
        metadata=_metadata(
            BufferLimits(), "When a client that doesn't read is dropped.", is_settable=True
        ),
    )
    unixsocketperm: int = _setting(0, Permissions(), "Permissions of unixsocket.")
    bind: tuple[str, ...] = _setting((), Words(16), "Addresses to listen at; none: all.")

    # What Disque doesn't show
    syslog_enabled: bool = _setting(False, _YES_NO, "Log to syslog.")
    syslog_ident: str = _setting("disque", Text(), "Our name in syslog.")
    appendfilename: str = _setting("disque.aof", FileName(), "Name of the log on disk.")
    cluster_config_file: str = _setting("nodes.conf", Text(1), "Where the node list is kept.")

    # Ours
    cluster_port: int = _setting(0, _PORT_OR_DEFAULT, "Port of the bus; 0: port + 10000.")
    cluster_announce_host: str = _live("", Host(), "Name or address others reach us by.")
    cluster_announce_port: int = _live(0, _PORT_OR_DEFAULT, "Client port others use; 0: port.")
    cluster_announce_bus_port: int = _live(0, _PORT_OR_DEFAULT, "Bus port others use; 0: ours.")
    cluster_join: tuple[JoinAddress, ...] = _setting(
        (), JoinAddresses(), "Nodes to join, tried until it works."
    )
    cluster_secret: str = _setting(
        "",
        Text(bytes_max=_WORD_BYTES_MAX),
        "What all nodes of a cluster must know.",
        is_secret=True,
        is_masked=True,
    )
    protected_mode: bool = _live(True, _YES_NO, "Without a password serve only this machine.")
    cluster_ask_timeout: int = _live(500, _COUNT, "Wait for members' answers.", unit="ms")
    default_maxdeliveries: int = _live(
        0, Integer(0, 65_535), "Deliveries before a job is a dead letter; 0: no limit."
    )
    default_deadletter: str = _live("dead-letters", Text(1), "Queue of dead letters.")
    tombstones_max: int = _live(100_000, Integer(), "Settled jobs remembered.")
    dummies_max: int = _live(100_000, Integer(), "Acks of unknown jobs remembered.")
    marks_max: int = _live(100_000, Integer(), "Ids remembered in place of a copy.")
    repair_after: int = _live(60, Integer(), "Missing copies are made again; 0: never.", unit="s")
    queue_max_idle: int = _live(300, _COUNT, "Unused queues are forgotten.", unit="s")
    topic_buffer: int = _live(1 << 20, Memory(), "Messages waiting, a subscriber.", unit="bytes")
    topic_overflow: str = _live(
        "drop-oldest", Choice(("drop-oldest", "disconnect")), "What happens beyond topic-buffer."
    )

    stomp_port: int = _setting(0, _PORT_OR_DEFAULT, "Port for STOMP clients; 0: none.")
    stomp_max_prefetch: int = _live(
        100, Integer(1, 65_535), "Unacknowledged messages, a STOMP subscription."
    )
    stomp_newline: bool = _live(False, _YES_NO, "A newline after frames for STOMP 1.0 clients.")

    http_port: int | None = _setting(
        None, AutoPort(), "Port of the web page, /metrics and STOMP over WebSocket; 0: none."
    )
    http_bind: tuple[str, ...] = _setting(
        (), Words(16), "Addresses of the web page; none: loopback. Others need requirepass."
    )
    http_tls: bool = _setting(False, _YES_NO, "Speak TLS on http-port.")

    # Who may come in
    requirepass_file: str = _setting("", FilePath(), "File that holds requirepass.", is_reread=True)
    cluster_secret_file: str = _setting(
        "", FilePath(), "File that holds cluster-secret.", is_reread=True
    )
    auth_failures_max: int = _live(
        60, Integer(), "Wrong passwords from an address in a minute; 0: no limit."
    )
    auth_timeout: int = _live(30, Integer(), "Time to give the password; 0: for ever.", unit="s")
    unauthenticated_max: int = _live(
        1_000, _COUNT, "Connections without the password; the oldest go."
    )
    clients_per_address_max: int = _live(0, Integer(), "Connections of an address; 0: no limit.")
    tls_port: int = _setting(0, _PORT_OR_DEFAULT, "Port for clients that speak TLS; 0: none.")
    tls_stomp_port: int = _setting(
        0, _PORT_OR_DEFAULT, "Port for STOMP clients that speak TLS; 0: none."
    )
    tls_only: bool = _live(False, _YES_NO, "Without TLS serve only this machine.")
    tls_cluster: bool = _setting(False, _YES_NO, "Speak TLS on the bus, both ways.")
    tls_cert_file: str = _live("", FilePath(), "Our certificate and its chain.", is_reloaded=True)
    tls_key_file: str = _live("", FilePath(), "The key of tls-cert-file.", is_reloaded=True)
    tls_ca_cert_file: str = _live(
        "", FilePath(), "Who signs certificates that we believe.", is_reloaded=True
    )
    tls_auth_clients: str = _live(
        "yes", Choice(("yes", "optional", "no")), "Must clients show a certificate?"
    )

    # What may come in
    body_max: int = _live(
        512 << 20, Memory(low=1 << 10), "An argument, or the body of a frame.", unit="bytes"
    )
    arguments_max: int = _live(1 << 20, Integer(16), "Arguments of a command.")
    pipeline_max: int = _live(1_000, _COUNT, "ADDJOBs of a connection that wait for copies.")
    clients_memory_max: int = _live(
        1 << 30,
        Memory(),
        "All connections' buffers; who holds most goes. 0: no limit.",
        unit="bytes",
    )
    queue_name_max: int = _live(4_096, _COUNT, "The name of a queue.", unit="bytes")
    queues_max: int = _live(1_000_000, _COUNT, "Queues at a time; beyond, no new ones.")
    blocked_clients_max: int = _live(
        1_000_000, _COUNT, "GETJOBs, WAITJOBs and STOMP subscriptions that wait."
    )
    cluster_frame_max: int = _live(
        513 << 20, Memory(low=64 << 10), "A frame of a peer.", unit="bytes"
    )
    cluster_link_buffer: int = _live(
        64 << 20, Memory(low=64 << 10), "What a link keeps unsent.", unit="bytes"
    )
    cluster_handshakes_max: int = _live(100, _COUNT, "Peers in handshake; the oldest go.")

    user: dict[str, User] = attrs.field(
        factory=dict,
        metadata=_metadata(
            Users(), "A user besides default.", is_file_only=True, is_secret=True, is_reread=True
        ),
    )
    rename_command: dict[str, str] = attrs.field(
        factory=dict,
        metadata=_metadata(Renames(), "Other names for commands.", is_file_only=True),
    )
    # No directives
    config_file: str = ""  # absolute path of the file read, "" if none
    start_folder: str = attrs.field(factory=lambda: str(Path.cwd()))  # where the server was started
    # secrets of the environment: no file has them
    kept_outside: set[str] = attrs.field(factory=set)
    from_files: set[str] = attrs.field(factory=set)  # secrets that came from a file of their own
    dial_map: Mapping[Address, Address] = attrs.field(factory=dict)  # see dialmap; for tests

    @property
    def bus_port(self) -> int:
        """The port of the bus: cluster-port, or the client port + 10000."""
        return self.cluster_port or self.port + BUS_PORT_OFFSET

    @property
    def is_bus_open(self) -> bool:
        """True if peers on other machines are welcome."""
        return bool(self.cluster_secret) or not self.protected_mode

    @property
    def announced(self) -> tuple[str, int, int, int]:
        """What others are told: host ("": as they see it), client port, bus port, and the TLS port for clients.

        An announced port is what all clients are to use, as behind NAT: then there is no other to be told.
        """
        port = self.cluster_announce_port
        bus_port = self.cluster_announce_bus_port or self.bus_port
        tls_port = 0 if port else self.tls_port
        return self.cluster_announce_host, port or self.port, bus_port, tls_port

    @property
    def page_port(self) -> int:
        """The port of the web page, 0 for none: http-port, or the client port + 1000 as far as there is such a port."""
        if self.http_port is not None:
            return self.http_port
        return self.port + PAGE_PORT_OFFSET if self.port + PAGE_PORT_OFFSET <= PORT_MAX else 0

    @property
    def is_page_exposed(self) -> bool:
        """True if the web page listens at more than loopback."""
        return not all(is_loopback(without_brackets(host)) for host in self.http_bind)

    def get(self, glob: str) -> list[tuple[str, str]]:
        """CONFIG GET: names that match, with their values as text, in Disque's order, then ours."""
        if len(glob) > _GLOB_CHARS_MAX:
            return []
        pattern = glob.lower().replace("[^", "[!")
        return [
            (name, directive.show(getattr(self, directive.attribute)))
            for name, directive in DIRECTIVES.items()
            if not directive.is_file_only and fnmatch.fnmatchcase(name, pattern)
        ]

    def set(self, name: str, text: str) -> str | None:
        """CONFIG SET: the canonical name of the directive if its value is another now, else None.

        Raises CommandError with Disque's texts, and changes nothing then. Applies nothing: the
        caller does what the change asks for (`dir` was only checked: chdir is the caller's).
        """
        directive = DIRECTIVES.get(name.lower())
        if directive is None or not directive.is_settable:
            text = f"Unsupported CONFIG parameter: {name[:NAME_BYTES_SHOWN]}"
            if directive is not None:
                when = "a start or SIGHUP" if directive.is_reread else "a start"
                text += f" (only {when} sets it)"
            raise CommandError(text)
        words = [text] if directive.kind.words_max == 1 else text.split()
        try:
            if not 0 < len(words) <= directive.kind.words_max:
                raise ValueError
            value: object = directive.kind.parse(words, is_live=True)
        except ValueError:
            said = "(redacted)" if directive.is_secret else text[:NAME_BYTES_SHOWN]
            raise CommandError(f"Invalid argument '{said}' for CONFIG SET '{name}'") from None
        if directive.name == "dir" and (trouble := _folder_trouble(str(value))):
            raise CommandError(f"Changing directory: {trouble}")
        old = getattr(self, directive.attribute)
        if value == old:
            return None
        setattr(self, directive.attribute, value)
        try:
            self._check_page()  # of what `check` looks at, all that may change
        except ConfigError as error:
            setattr(self, directive.attribute, old)
            raise CommandError(str(error)) from None
        self.kept_outside.discard(directive.name)
        if directive.name == "requirepass":
            self.requirepass_file = ""
        return directive.name

    def assign(self, directive: Directive, words: Sequence[str]) -> None:
        """Take a value from file, environment or flag; ConfigError names directive and value."""
        kind = directive.kind
        if not 0 < len(words) <= kind.words_max:
            wanted = "one value" if kind.words_max == 1 else f"1 to {kind.words_max} values"
            raise ConfigError(f"{directive.name} takes {wanted}, got {len(words)}")
        try:
            value: Any = kind.parse(words, is_live=False)
        except ValueError as error:
            said = " ".join(words)[:NAME_BYTES_SHOWN]
            got = "" if directive.is_secret else f", got '{said}'"
            raise ConfigError(f"{directive.name} {error}{got}") from None
        if isinstance(value, dict):  # one line for each entry
            value = {**getattr(self, directive.attribute), **value}
        setattr(self, directive.attribute, value)

    def check(self) -> None:
        """Refuse what can't work together, or isn't there; ConfigError names it."""
        if self.bus_port > PORT_MAX:
            raise ConfigError(
                f"port {self.port} puts the bus at port + {BUS_PORT_OFFSET} = {self.bus_port}, "
                f"beyond {PORT_MAX}; set cluster-port"
            )
        if self.bus_port == self.port:
            raise ConfigError(f"cluster-port must be another than port, both are {self.port}")
        self._check_ports()
        if self.daemonize:
            raise ConfigError(
                "daemonize yes isn't offered: let a service manager (systemd, a container) run it"
            )
        self._check_page()
        self._check_renames()
        if trouble := _folder_trouble(self.dir):
            raise ConfigError(f"dir '{self.dir}' can't be used: {trouble}")

    def _check_ports(self) -> None:
        taken = {self.port, self.bus_port}
        for name in ("stomp-port", "tls-port", "tls-stomp-port", "http-port"):
            port = getattr(self, DIRECTIVES[name].attribute) or 0
            if port in taken:
                raise ConfigError(f"{name} must be another than port and cluster-port, got {port}")
            taken |= {port} - {0}

    def _check_page(self) -> None:
        if self.page_port and self.is_page_exposed and not self.requirepass:
            raise ConfigError(
                f"http-bind {' '.join(self.http_bind)} needs requirepass: the page can do all that a client can"
            )
        if self.page_port and self.is_page_exposed and self.tls_only and not self.http_tls:
            raise ConfigError("tls-only with http-bind needs http-tls, too")
        if self.http_tls and not self.tls_cert_file:
            raise ConfigError("http-tls needs tls-cert-file (and tls-key-file)")

    def _check_renames(self) -> None:
        """Disque's two rules: the old name is a command, the new one isn't taken."""
        taken = {name.decode() for name in COMMANDS} - set(self.rename_command)
        for old, new in self.rename_command.items():
            if old.encode() not in COMMANDS:
                raise ConfigError(f"rename-command: there is no command '{old}'")
            if new in taken:
                raise ConfigError(f"rename-command {old}: the name '{new}' is taken")
            if new:
                taken.add(new)


def _folder_trouble(path: str) -> str | None:
    """Why this folder can't be entered, None if it can."""
    try:
        next(Path(path).iterdir(), None)
    except OSError as error:
        return error.strerror
    return None


def _directives() -> Mapping[str, Directive]:
    directives = {}
    for field in attrs.fields(Config):
        if "directive" in field.metadata:
            kind, text, more = field.metadata["directive"]
            name = field.name.replace("_", "-")
            directives[name] = Directive(name, kind, text, **more)
    return directives


DIRECTIVES: Mapping[str, Directive] = _directives()
