"""Listeners: all or none, and a sentence that names what failed."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from disque.errors import ConfigError
from disque.server.sockets import listen, listen_unix

if TYPE_CHECKING:
    from pathlib import Path


def test_default_is_all_interfaces() -> None:
    listeners = listen((), 0, 5)
    hosts = [each.getsockname()[0] for each in listeners]
    for each in listeners:
        each.close()
    assert hosts[0] == "0.0.0.0"
    assert hosts[1:] in (["::"], [])


def test_taken_port_names_address_and_reason_and_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"can't listen on 127\.0\.0\.1:{port}: Address already"
        ):
            listen(("127.0.0.2", "127.0.0.1"), port, 5)
        with socket.create_server(("127.0.0.2", port)):
            pass


def test_name_that_cannot_be_resolved_is_told() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on nosuch\.invalid:7711: "):
        listen(("nosuch.invalid",), 7711, 5)


def test_unix_socket_left_behind_is_replaced_and_gets_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        listen_unix(str(path), 0o600, 5).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_in_place_of_a_unix_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"can't listen on .*: Address already in use"):
        listen_unix(str(path), 0, 5)
    assert path.read_text() == "mine"


def test_address_in_brackets_and_star_mean_what_they_say() -> None:
    for hosts, first in ((("[127.0.0.1]",), "127.0.0.1"), (("*",), "0.0.0.0")):
        listeners = listen(hosts, 0, 5)
        found = listeners[0].getsockname()[0]
        for each in listeners:
            each.close()
        assert found == first
