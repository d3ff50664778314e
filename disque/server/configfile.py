"""Where settings come from: file, then environment, then flags; each beats the one before.

File: one directive a line, `#` comments, quoting as in inline commands, `include`. Environment:
`DISQUE_` and the name in capitals with underscores; what isn't known there is a warning, since
other programs (Kubernetes' service links) write there too, and an empty value counts as not given.
Flags: `--name value ...` or `--name=value`. It reads files and knows no sockets.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from disque.errors import ConfigError
from disque.resp.inline import split_words
from disque.server import dialmap
from disque.server.config import DIRECTIVES, Config
from disque.server.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from disque.server.acl import User
    from disque.server.directives import Directive

ENVIRONMENT_PREFIX = "DISQUE_"
INCLUDE_DEPTH_MAX = 16  # files that include each other
FILE_BYTES_MAX = 1 << 20  # of a configuration file
SECRET_FILE_BYTES_MAX = 4_096
SECRET_BYTES_MIN = 16  # of cluster-secret, before its length is worth a warning
# What programs and the tool read; a shell that has them may start a node, too.
_OF_PROGRAMS = frozenset({"DISQUE_URL", "DISQUE_AUTH", "DISQUE_HISTORY"})
_HINTS = {"DISQUE_PASSWORD": "; the password is DISQUE_REQUIREPASS"}


@attrs.frozen
class Loaded:
    """The settings, and lines that the log should show as warnings."""

    config: Config
    warnings: tuple[str, ...]


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Loaded:
    """Read `[CONFIG-FILE] [--DIRECTIVE VALUE ...]` and the environment into a checked Config.

    Raises ConfigError, one line that names the directive and where it stands. Paths are taken from
    the present folder; `dir` isn't entered, that is the caller's.
    """
    config = Config()
    flags = list(arguments)
    if flags and not flags[0].startswith("-"):
        path = Path(flags.pop(0)).resolve()
        config.config_file = str(path)
        read_file(config, path)
    warnings = read_environment(config, environment)
    read_flags(config, flags)
    read_secrets(config)
    config.check()
    return Loaded(config, (*warnings, *weaknesses(config)))


def read_file(config: Config, path: Path, depth: int = 1, *, may_wait: bool = True) -> None:
    """Read a configuration file; ConfigError has `file:line`.

    Included files are looked for from the present folder, as in Disque. `may_wait`: a pipe will do, too.
    """
    if depth > INCLUDE_DEPTH_MAX:
        raise ConfigError(f"{path}: more than {INCLUDE_DEPTH_MAX} files include each other")
    try:
        content = _read(path, FILE_BYTES_MAX + 1, may_wait=may_wait)
    except OSError as error:
        raise ConfigError(f"{path}: can't read this config file: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: longer than {FILE_BYTES_MAX} bytes")
    read_content(config, content, path, depth, may_wait=may_wait)


def read_content(
    config: Config, content: bytes, path: Path, depth: int = 1, *, may_wait: bool = True
) -> None:
    """Read the text of a configuration file; `path` is for complaints. ConfigError has `file:line`."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        try:
            words = [word.decode("utf-8", "surrogateescape") for word in split_words(line)]
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None
        if words and words[0].lower() == "include":
            if len(words) != 2:
                raise ConfigError(f"{path}:{number}: include takes one value, got {len(words) - 1}")
            read_file(config, Path(words[1]).resolve(), depth + 1, may_wait=may_wait)
        elif words:
            _assign(config, words[0], words[1:], f"{path}:{number}", is_file=True)


def read_environment(config: Config, environment: Mapping[str, str]) -> list[str]:
    """Read the variables that begin with DISQUE_; returns warnings about those that say nothing."""
    warnings = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text or variable in _OF_PROGRAMS:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
        directive = DIRECTIVES.get(name)
        if variable == dialmap.VARIABLE:
            config.dial_map = _dial_map(text)
        elif directive is None or directive.is_file_only or variable != variable.upper():
            hint = _HINTS.get(variable, "")
            warnings.append(f"{variable}: no directive of that name, ignored{hint}")
        elif text.startswith(("tcp://", "udp://", "sctp://")) and not directive.is_secret:
            warnings.append(f"{variable}: a Kubernetes service link ('{text}'), ignored")
        else:
            _assign(config, name, _words(directive, [text]), variable)
            if directive.is_secret:
                config.kept_outside.add(directive.name)
    return warnings


def read_flags(config: Config, flags: Sequence[str]) -> None:
    """Read `--name value ...` and `--name=value`; a value list ends at the next `--`."""
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"unexpected argument '{flag}'; a directive is --NAME VALUE")
        name, equals, text = flag[2:].partition("=")
        values = [text] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        directive = DIRECTIVES.get(name.lower())
        _assign(config, name, _words(directive, values), f"--{name}")
        config.kept_outside.discard(name.lower())


def read_secrets(config: Config, *, may_wait: bool = True) -> None:
    """Read, or read again, the files that hold secrets; ConfigError if one can't be used, or is given twice.

    What is wrong with one doesn't concern the other. `may_wait`: a pipe will do, too.
    """
    troubles = []
    for name in ("requirepass", "cluster-secret"):
        try:
            _read_secret(config, name, may_wait=may_wait)
        except ConfigError as error:
            troubles.append(str(error))
    if troubles:
        raise ConfigError("; ".join(troubles))


def _read_secret(config: Config, name: str, *, may_wait: bool) -> None:
    directive, source = DIRECTIVES[name], DIRECTIVES[f"{name}-file"]
    path = getattr(config, source.attribute)
    if not path:
        return
    if getattr(config, directive.attribute) and name not in config.from_files:
        raise ConfigError(f"{source.name}: {name} is given, too; only one of them can hold")
    try:
        data = _read(Path(path), SECRET_FILE_BYTES_MAX, may_wait=may_wait)
    except OSError as error:
        raise ConfigError(f"{source.name} {path}: {error.strerror}") from None
    secret = data.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
    if not secret:
        raise ConfigError(f"{source.name} {path}: the file is empty")
    config.assign(directive, [secret])
    config.from_files.add(name)
    config.kept_outside.add(name)


def _read(path: Path, size: int, *, may_wait: bool) -> bytes:
    """The beginning of a file; OSError. A node that serves must not wait for whoever may write into a pipe."""
    if may_wait:
        with path.open("rb") as file:
            return file.read(size)
    check_regular(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read(size)


def weaknesses(config: Config) -> list[str]:
    """Warnings about what can be used, and shouldn't be."""
    size = len(config.cluster_secret.encode("utf-8", "surrogateescape"))
    if not 0 < size < SECRET_BYTES_MIN:
        return []
    remedy = f"give it {SECRET_BYTES_MIN} or more that are random (openssl rand -hex 32)"
    return [f"cluster-secret has {size} bytes: who sees a handshake can try all such; {remedy}"]


def users_of_file(config: Config) -> dict[str, User]:
    """The users that the configuration file has now; ConfigError if it can't be read."""
    if not config.config_file:
        return {}
    with standing_in(config.start_folder):
        said = Config()
        read_file(said, Path(config.config_file), may_wait=False)
    return said.user


@contextlib.contextmanager
def standing_in(folder: str) -> Iterator[None]:
    """Paths in the file are taken from where the server was started; ConfigError if that has gone."""
    try:
        here = Path.cwd()
        os.chdir(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    try:
        yield
    finally:
        os.chdir(here)


def _dial_map(text: str) -> Mapping[dialmap.Address, dialmap.Address]:
    try:
        return dialmap.parse_dial_map(text)
    except ValueError as error:
        raise ConfigError(f"{dialmap.VARIABLE}: {error}") from None


def _words(directive: Directive | None, values: list[str]) -> list[str]:
    """Values of a directive that takes several may also stand in one text."""
    if directive is None or directive.kind.words_max == 1:
        return values
    return [word for value in values for word in value.split()]


def _assign(
    config: Config, name: str, words: Sequence[str], where: str, *, is_file: bool = False
) -> None:
    directive = DIRECTIVES.get(name.lower())
    if directive is None:
        raise ConfigError(f"{where}: unknown directive '{name}'{_likely(name, is_file=is_file)}")
    if directive.is_file_only and not is_file:
        raise ConfigError(f"{where}: {directive.name} can only stand in the file")
    try:
        config.assign(directive, words)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _likely(name: str, *, is_file: bool) -> str:
    """What may have been meant, as it is written there."""
    import difflib  # only now: a start must be quick

    near = difflib.get_close_matches(name.lower(), DIRECTIVES, n=1)
    return f"; did you mean {'' if is_file else '--'}{near[0]}?" if near else ""
