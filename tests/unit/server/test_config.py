"""Settings: where they come from, what they may be, and what CONFIG GET and SET make of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.errors import CommandError, ConfigError
from disque.server.config import DIRECTIVES, Config
from disque.server.configfile import load, users_of_file
from disque.server.directives import BufferLimit, JoinAddress

if TYPE_CHECKING:
    from pathlib import Path

DISQUES_ORDER = [
    "requirepass", "unixsocket", "logfile", "pidfile", "maxmemory", "maxmemory-samples",
    "timeout", "auto-aof-rewrite-percentage", "auto-aof-rewrite-min-size",
    "slowlog-log-slower-than", "latency-monitor-threshold", "slowlog-max-len", "port",
    "tcp-backlog", "databases", "maxclients", "watchdog-period", "hz", "cluster-node-timeout",
    "tcp-keepalive", "no-appendfsync-on-rewrite", "daemonize", "activerehashing",
    "aof-rewrite-incremental-fsync", "aof-load-truncated", "aof-enqueue-jobs-once",
    "maxmemory-policy", "loglevel", "appendfsync", "syslog-facility", "appendonly", "dir",
    "client-output-buffer-limit", "unixsocketperm", "bind",
]  # fmt: skip
SETTABLE = [
    "requirepass", "maxclients", "appendonly", "dir", "client-output-buffer-limit",
    "aof-rewrite-incremental-fsync", "aof-load-truncated", "activerehashing", "tcp-keepalive",
    "aof-enqueue-jobs-once", "maxmemory-samples", "timeout", "auto-aof-rewrite-percentage",
    "auto-aof-rewrite-min-size", "slowlog-log-slower-than", "slowlog-max-len",
    "latency-monitor-threshold", "cluster-node-timeout", "hz", "watchdog-period", "maxmemory",
    "loglevel", "maxmemory-policy", "appendfsync",
]  # fmt: skip
DEFAULTS = {
    "port": "7711", "tcp-backlog": "511", "timeout": "0", "tcp-keepalive": "no", "loglevel": "notice",
    "logfile": "", "databases": "16", "maxclients": "10000", "maxmemory": "1073741824",
    "maxmemory-policy": "acks", "maxmemory-samples": "5", "hz": "10", "appendonly": "no",
    "appendfilename": "disque.aof", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "100",
    "auto-aof-rewrite-min-size": "67108864", "aof-load-truncated": "yes",
    "aof-enqueue-jobs-once": "no", "cluster-config-file": "nodes.conf",
    "cluster-node-timeout": "15000", "slowlog-log-slower-than": "10000", "slowlog-max-len": "128",
    "latency-monitor-threshold": "0", "client-output-buffer-limit": "normal 0 0 0",
    "pidfile": "/var/run/disque.pid", "requirepass": "", "bind": "", "protected-mode": "yes",
    "cluster-ask-timeout": "500", "repair-after": "60", "queue-max-idle": "300",
}  # fmt: skip


def of_file(tmp_path: Path, text: str | bytes, *flags: str, **environment: str) -> Config:
    path = tmp_path / "disque.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load([str(path), *flags], environment).config


def refusal(*flags: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(flags, {})
    return str(refused.value)


def value(config: Config, name: str) -> str:
    ((_, text),) = config.get(name)
    return text


# Sources


def test_flags_beat_the_environment_that_beats_the_file_that_beats_defaults(tmp_path: Path) -> None:
    text = "timeout 1\nhz 21\nmaxclients 31\n"
    config = of_file(tmp_path, text, "--timeout", "3", DISQUE_TIMEOUT="2", DISQUE_HZ="22")
    assert (config.timeout, config.hz, config.maxclients, config.port) == (3, 22, 31, 7711)
    assert config.config_file == str(tmp_path / "disque.conf")


def test_the_file_has_comments_quotes_any_case_and_crlf(tmp_path: Path) -> None:
    config = of_file(
        tmp_path,
        b"\n# port 1\n   # x\nPORT 7000\r\nrequirepass \"a b\\x41\"\nlogfile 'it\\'s'\n"
        b'bind 127.0.0.1 ::1\nsyslog-ident ""\nclient-output-buffer-limit normal 1mb 2k 60\n'
        b'rename-command CONFIG ""\nrename-command SHUTDOWN halt\nmaxmemory 3mb\nunixsocketperm 700\n',
    )
    assert config.port == 7000
    assert config.requirepass == "a bA"
    assert config.logfile == "it's"
    assert config.bind == ("127.0.0.1", "::1")
    assert config.syslog_ident == ""
    assert config.client_output_buffer_limit == BufferLimit(1 << 20, 2000, 60)
    assert config.rename_command == {"config": "", "shutdown": "halt"}
    assert config.maxmemory == 3 << 20
    assert config.unixsocketperm == 0o700


def test_include_is_read_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.conf").write_text("hz 30\ntimeout 4\n")
    config = of_file(tmp_path, "hz 20\ninclude more.conf\ntimeout 5\n")
    assert (config.hz, config.timeout) == (30, 5)


def test_files_that_include_each_other_for_ever_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "disque.conf"
    with pytest.raises(ConfigError, match="more than 16 files"):
        of_file(tmp_path, f"include {path}\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("prot 1", "unknown directive 'prot'; did you mean port?"),
        ("port", "port takes one value, got 0"),
        ("port 1 2", "port takes one value, got 2"),
        ("port x", "port must be a number between 1 and 65535, got 'x'"),
        ("body-max 99", "body-max must be at least 1024 bytes, got '99'"),
        ("user worker on", "user worker: a user that is on needs #SHA256 of its password"),
        (
            "user worker on #abc",
            "user worker: # and the 64 hexadecimal digits of a password's SHA-256",
        ),
        ('logfile "a', "a quote is not closed"),
        ("include", "include takes one value, got 0"),
        ("bind " + "a " * 17, "bind takes 1 to 16 values, got 17"),
        ("rename-command x", "rename-command must be a command and its new name, got 'x'"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_file_and_line(
    tmp_path: Path, line: str, text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        of_file(tmp_path, f"\n{line}\n")
    assert str(refused.value) == f"{tmp_path / 'disque.conf'}:2: {text}"


def test_a_file_that_is_not_there_or_no_text_is_one_clear_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.conf")
    assert refusal(missing) == f"{missing}: can't read this config file: No such file or directory"
    assert refusal(str(tmp_path)) == f"{tmp_path}: can't read this config file: Is a directory"
    with pytest.raises(ConfigError, match="unknown directive"):
        of_file(tmp_path, bytes(range(255, 127, -1)))


@given(content=st.binary())
def test_junk_in_the_file_raises_config_errors_alone(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.conf"
    path.write_bytes(content)
    with suppress(ConfigError):
        load([str(path)], {})


def test_flags_take_values_up_to_the_next_flag() -> None:
    flags = ["--bind", "127.0.0.1", "::1", "--requirepass", "", "--HZ=50", "--logfile=--x"]
    config = load(flags, {}).config
    assert config.bind == ("127.0.0.1", "::1")
    assert (config.requirepass, config.hz, config.logfile) == ("", 50, "--x")
    assert load(["--slowlog-log-slower-than", "-1"], {}).config.slowlog_log_slower_than == -1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--nope", "1"], "--nope: unknown directive 'nope'"),
        (["--port"], "--port: port takes one value, got 0"),
        (["--port", "1", "2"], "--port: port takes one value, got 2"),
        (["--port", "70000"], "--port: port must be a number between 1 and 65535, got '70000'"),
        (["--rename-command", "a", "b"], "--rename-command: rename-command can only stand in the file"),
        (["--requirepass", "x" * 513], "--requirepass: requirepass must have 0 to 512 bytes"),
        (["--cluster-secret", "x" * 513], "--cluster-secret: cluster-secret must have 0 to 512 bytes"),
        (["-p", "7711"], "unexpected argument '-p'; a directive is --NAME VALUE"),
        (["--hz=1", "stray"], "unexpected argument 'stray'; a directive is --NAME VALUE"),
        (["--appendfilename", "a/b"],
         "--appendfilename: appendfilename must be the name of a file, without a folder, got 'a/b'"),
        (["--loglevel", "loud"],
         "--loglevel: loglevel must be one of debug verbose notice warning, got 'loud'"),
        (["--maxmemory", "1tb"],
         "--maxmemory: maxmemory must be a number of bytes, with or without b k kb m mb g gb, got '1tb'"),
        (["--protected-mode", "1"], "--protected-mode: protected-mode must be yes or no, got '1'"),
        (["--client-output-buffer-limit", "slave", "0", "0", "0"],
         ("--client-output-buffer-limit: client-output-buffer-limit must be normal HARD SOFT SECONDS"
          ", got 'slave 0 0 0'")),
        (["--unixsocketperm", "888"],
         "--unixsocketperm: unixsocketperm must be octal permissions between 0 and 777, got '888'"),
        (["--cluster-join", "a:0"],
         "--cluster-join: cluster-join must be host[:port[@busport]] ..., ports up to 65535, got 'a:0'"),
    ],
)  # fmt: skip
def test_wrong_flags_are_named(flags: list[str], text: str) -> None:
    assert refusal(*flags) == text


def test_unknown_variables_and_service_links_are_warnings() -> None:
    loaded = load(
        [],
        {
            "DISQUE_PORT": "tcp://10.0.0.1:7711",
            "DISQUE_SERVICE_HOST": "10.0.0.1",
            "DISQUE_PASSWORD": "hidden",
            "DISQUE_URL": "disque://127.0.0.1",
            "DISQUE_AUTH": "hidden",
            "DISQUE_HISTORY": "/history",
            "DISQUE_RENAME_COMMAND": "a b",
            "DISQUE_REQUIREPASS": "",
            "DISQUE_CLUSTER_JOIN": "one two:7712",
            "PATH": "/bin",
        },
    )
    assert loaded.config.port == 7711
    assert [node.host for node in loaded.config.cluster_join] == ["one", "two"]
    assert loaded.warnings == (
        "DISQUE_PASSWORD: no directive of that name, ignored; the password is DISQUE_REQUIREPASS",
        "DISQUE_PORT: a Kubernetes service link ('tcp://10.0.0.1:7711'), ignored",
        "DISQUE_RENAME_COMMAND: no directive of that name, ignored",
        "DISQUE_SERVICE_HOST: no directive of that name, ignored",
    )


def test_a_password_like_a_service_link_is_one() -> None:
    loaded = load([], {"DISQUE_REQUIREPASS": "tcp://hidden"})
    assert (loaded.config.requirepass, loaded.warnings) == ("tcp://hidden", ())


def test_a_bad_value_in_a_known_variable_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^DISQUE_HZ: hz must be a number .*, got 'x'$"):
        load([], {"DISQUE_HZ": "x"})


def test_an_empty_variable_leaves_the_file_in_force(tmp_path: Path) -> None:
    assert of_file(tmp_path, "requirepass a\n", DISQUE_REQUIREPASS="").requirepass == "a"


# What can't work


def test_a_port_without_room_for_the_bus_needs_a_cluster_port() -> None:
    assert refusal("--port", "60000") == (
        "port 60000 puts the bus at port + 10000 = 70000, beyond 65535; set cluster-port"
    )
    config = load(["--port", "60000", "--cluster-port", "60001"], {}).config
    assert config.bus_port == 60001
    assert load([], {}).config.bus_port == 17711
    assert load(["--port", "55535"], {}).config.bus_port == 65535
    assert "both are 7711" in refusal("--cluster-port", "7711")


def test_what_is_not_offered_is_refused_at_start() -> None:
    assert "service manager" in refusal("--daemonize", "yes")
    assert refusal("--dir", "/no/such") == "dir '/no/such' can't be used: No such file or directory"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("rename-command NOSUCH x", "rename-command: there is no command 'nosuch'"),
        ("rename-command QLEN show", "rename-command qlen: the name 'show' is taken"),
        (
            "rename-command QLEN x\nrename-command SHOW X",
            "rename-command show: the name 'x' is taken",
        ),
    ],
)
def test_renames_that_cannot_be_are_refused(tmp_path: Path, lines: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of_file(tmp_path, lines)
    assert str(refused.value) == text


def test_renames_may_swap_names(tmp_path: Path) -> None:
    lines = "rename-command QLEN show\nrename-command SHOW qlen\n"
    assert of_file(tmp_path, lines).rename_command == {"qlen": "show", "show": "qlen"}


def test_address_to_announce_may_stand_in_brackets() -> None:
    assert load(["--cluster-announce-host", "[::1]"], {}).config.cluster_announce_host == "::1"


@pytest.mark.parametrize("host", ["a b", "a,b", "käse", "x" * 256, "a/b", "[::1]:7711", "a:1"])
def test_what_no_peer_would_take_for_a_host_is_refused(host: str) -> None:
    config = Config()
    with pytest.raises(CommandError, match="Invalid argument"):
        config.set("cluster-announce-host", host)
    with pytest.raises(ConfigError, match="must be a host name or an address"):
        load(["--cluster-announce-host", host], {})
    if host[0] != "[" and " " not in host and ":" not in host:
        with pytest.raises(ConfigError, match="cluster-join must be host"):
            load([f"--cluster-join={host}:7711"], {})


def test_an_announced_port_is_for_all_clients() -> None:
    config = load(["--tls-port", "7721"], {}).config
    assert config.announced == ("", 7711, 17711, 7721)
    config.set("cluster-announce-port", "1")
    config.set("cluster-announce-bus-port", "2")
    config.set("cluster-announce-host", "a.example")
    assert config.announced == ("a.example", 1, 2, 0)


def test_dir_becomes_absolute_and_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert load(["--dir", "./data"], {}).config.dir == str(tmp_path / "data")
    assert load([], {}).config.dir == str(tmp_path)


# CONFIG GET and SET


def test_config_get_shows_disques_names_in_its_order_then_ours() -> None:
    names = [name for name, _ in Config().get("*")]
    assert names[: len(DISQUES_ORDER)] == DISQUES_ORDER
    assert set(DIRECTIVES) - set(names) == {"rename-command", "user"}


def test_defaults_are_disques() -> None:
    config = Config()
    assert {name: value(config, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("port", ["port"]),
        ("PORT", ["port"]),
        ("tcp-*", ["tcp-backlog", "tcp-keepalive"]),
        ("h?", ["hz"]),
        ("[ho][^a]", ["hz"]),
        ("nope", []),
        ("", []),
        ("*" * 1000, []),
    ],
)
def test_config_get_takes_a_glob(glob: str, names: list[str]) -> None:
    assert [name for name, _ in Config().get(glob)] == names


@pytest.mark.parametrize(
    ("secret", "is_told"), [("", False), ("s", True), ("x" * 15, True), ("x" * 16, False)]
)
def test_a_short_cluster_secret_is_taken_and_told(secret: str, is_told: bool) -> None:
    loaded = load(["--cluster-secret", secret], {})
    assert loaded.config.cluster_secret == secret
    assert [text.split(":")[0] for text in loaded.warnings] == (
        [f"cluster-secret has {len(secret)} bytes"] if is_told else []
    )


@pytest.mark.parametrize("name", ["requirepass", "cluster-secret"])
def test_secrets_are_never_shown_only_that_they_are_set(name: str) -> None:
    config = load([f"--{name}", "s3cret"], {}).config
    assert value(config, name) == "(set)"
    assert "s3cret" not in repr(config.get("*"))
    assert value(Config(), name) == ""


def test_what_disque_lets_change_may_change_and_the_rest_of_its_names_may_not() -> None:
    may = {name for name in DISQUES_ORDER if DIRECTIVES[name].is_settable}
    assert may == set(SETTABLE)


@pytest.mark.parametrize("name", [name for name, each in DIRECTIVES.items() if each.is_settable])
def test_setting_what_get_shows_changes_nothing(name: str) -> None:
    config = Config()
    assert config.set(name, value(config, name)) is None


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("requirepass", "a b", "(set)"),
        ("maxmemory", "2gb", str(2 << 30)),
        ("maxmemory", "1G", "1000000000"),
        ("maxmemory", "0", "0"),  # no limit
        ("MaxMemory", "1", "1"),
        ("hz", "0", "1"),
        ("hz", "501", "500"),
        ("tcp-keepalive", "yes", "yes"),
        ("cluster-node-timeout", "3000", "3000"),
        ("loglevel", "DEBUG", "debug"),
        ("client-output-buffer-limit", "normal 1mb 1kb 5", "normal 1048576 1024 5"),
        ("protected-mode", "no", "no"),
        ("cluster-announce-host", "example.org", "example.org"),
        ("repair-after", "0", "0"),
    ],
)
def test_config_set_takes(name: str, text: str, shown: str) -> None:
    config = Config()
    assert config.set(name, text) == name.lower()
    assert value(config, name) == shown
    assert config.set(name, text) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cluster-node-timeout", "0"),  # W-37
        ("cluster-node-timeout", "-1"),
        ("maxmemory", "1x"),
        ("maxmemory", "-1"),
        ("maxmemory", "9223372036854775808"),
        ("maxmemory", "²"),
        ("auto-aof-rewrite-min-size", "1mb"),
        ("tcp-keepalive", "30"),
        ("slowlog-log-slower-than", "-1"),
        ("hz", "x"),
        ("hz", ""),
        ("loglevel", "x"),
        ("client-output-buffer-limit", ""),
        ("client-output-buffer-limit", "normal 0 0"),
        ("client-output-buffer-limit", "slave 0 0 0"),
    ],
)
def test_config_set_refuses_and_changes_nothing(name: str, text: str) -> None:
    config = Config()
    before = config.get("*")
    with pytest.raises(CommandError) as refused:
        config.set(name, text)
    assert str(refused.value) == f"Invalid argument '{text[:128]}' for CONFIG SET '{name}'"
    assert config.get("*") == before


def test_a_password_that_is_refused_isnt_shown() -> None:
    with pytest.raises(CommandError) as refused:
        Config().set("requirepass", "x" * 513)
    assert str(refused.value) == "Invalid argument '(redacted)' for CONFIG SET 'requirepass'"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope", ""),
        ("", ""),
        ("PORT", " (only a start sets it)"),
        ("bind", " (only a start sets it)"),
        ("cluster-secret", " (only a start sets it)"),
        ("rename-command", " (only a start sets it)"),
        ("cluster-secret-file", " (only a start or SIGHUP sets it)"),
        ("user", " (only a start or SIGHUP sets it)"),
    ],
)
def test_config_set_names_what_it_does_not_support(name: str, why: str) -> None:
    with pytest.raises(CommandError) as refused:
        Config().set(name, "1")
    assert str(refused.value) == f"Unsupported CONFIG parameter: {name}{why}"


def test_config_set_cant_enter_a_missing_folder() -> None:
    with pytest.raises(CommandError, match=r"^Changing directory: No such file or directory$"):
        Config().set("dir", "/no/such")


@pytest.mark.parametrize(
    ("word", "node"),
    [
        ("host", JoinAddress("host", 7711, 17711)),
        ("host:8000", JoinAddress("host", 8000, 18000)),
        ("host:60000@60001", JoinAddress("host", 60000, 60001)),
        ("::1", JoinAddress("::1", 7711, 17711)),
        ("[::1]", JoinAddress("::1", 7711, 17711)),
        ("[fe80::1]:9", JoinAddress("fe80::1", 9, 10009)),
        ("10.0.0.1:7712", JoinAddress("10.0.0.1", 7712, 17712)),
    ],
)
def test_nodes_to_join(word: str, node: JoinAddress) -> None:
    config = load(["--cluster-join", word], {}).config
    assert config.cluster_join == (node,)
    again = load(["--cluster-join", value(config, "cluster-join")], {}).config
    assert again.cluster_join == (node,)


@pytest.mark.parametrize(
    "word", ["a:", "a:x", ":7711", "a:60000", "[::1", "a:1@0", "a:99999", "a@1"]
)
def test_nodes_that_are_none_are_refused(word: str) -> None:
    assert refusal("--cluster-join", word).endswith(f"got '{word}'")


# Secrets in files of their own


@pytest.mark.parametrize("name", ["requirepass", "cluster-secret"])
def test_a_secret_may_lie_in_a_file_of_its_own(tmp_path: Path, name: str) -> None:
    path, attribute = tmp_path / "secret", name.replace("-", "_")
    path.write_bytes(b"a b \xff\r\n")
    assert getattr(load([f"--{name}-file", str(path)], {}).config, attribute) == "a b \udcff"
    variable = f"DISQUE_{attribute.upper()}_FILE"
    assert getattr(load([], {variable: str(path)}).config, attribute) == "a b \udcff"
    assert refusal(f"--{name}-file", str(path), f"--{name}", "x").startswith(
        f"{name}-file: {name} is"
    )
    path.write_bytes(b"\n")
    assert refusal(f"--{name}-file", str(path)) == f"{name}-file {path}: the file is empty"
    path.write_bytes(b"x" * 513)
    assert refusal(f"--{name}-file", str(path)) == f"{name} must have 0 to 512 bytes"
    path.unlink()
    assert refusal(f"--{name}-file", str(path)).endswith(": No such file or directory")


def test_users_cannot_be_read_again_where_the_first_folder_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "disque.conf"
    path.write_text("")
    config = load([str(path)], {}).config
    config.start_folder = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match="gone: No such file or directory"):
        users_of_file(config)


def test_users_come_from_the_file_alone_and_a_later_line_replaces_an_earlier(
    tmp_path: Path,
) -> None:
    sha = "#" + "a" * 64
    config = of_file(tmp_path, f"user a on {sha} +@all ~*\nuser b off\nuser a off\n")
    assert {name: user.is_on for name, user in config.user.items()} == {"a": False, "b": False}
    assert "only stand in the file" in refusal("--user", "a", "off")
    assert load([], {"DISQUE_USER": "somebody"}).config.user == {}
