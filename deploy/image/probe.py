#!/usr/bin/env python3
"""disque-probe [alive|ready]: asks the node of this container how it is; for HEALTHCHECK and probes of Kubernetes.

alive: it answers anything at all, a node that loads its log included. ready: it serves clients, and doesn't leave the
cluster. Exit status 0 for yes; else 1 and a line that says why not. Port and password are those of the node's own
environment. Standard library only: it runs every few seconds.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

TIMEOUT_S = 2.0
PORT = 7711


def main() -> int:
    """Ask, and answer by the exit status."""
    question = sys.argv[1] if len(sys.argv) > 1 else "alive"
    if question not in ("alive", "ready"):
        sys.stderr.write(f"disque-probe: alive or ready, not {question!r}\n")
        return 2
    commands = [b"PING"] if question == "alive" else [b"PING", b"CLUSTER LEAVING"]
    try:
        answers = ask(commands)
    except OSError as error:
        answers = [f"no answer: {error}"]
        question = "ready"
    if question == "alive" or answers == ["+PONG", "+no"]:
        return 0
    trouble = [each for each in answers if each not in ("+PONG", "+no")]
    sys.stdout.write(f"{'leaving the cluster' if trouble == ['+yes'] else trouble[0]}\n")
    return 1


def ask(commands: list[bytes]) -> list[str]:
    """The first line of each answer. OSError."""
    port = os.environ.get("DISQUE_PORT", "")
    address = ("127.0.0.1", int(port) if port.isdigit() else PORT)
    with socket.create_connection(address, TIMEOUT_S) as sock, sock.makefile("rb") as lines:
        secret = password()
        if secret:
            sock.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret))
            lines.readline()
        answers = []
        for command in commands:
            sock.sendall(command + b"\r\n")
            line = lines.readline()
            if not line:
                raise ConnectionError("the node has ended the connection")
            answers.append(line.decode("utf-8", "replace").strip())
        return answers


def password() -> bytes:
    """What the node was told by its environment."""
    path = os.environ.get("DISQUE_REQUIREPASS_FILE")
    if path:
        return Path(path).read_bytes().rstrip(b"\r\n")
    return os.fsencode(os.environ.get("DISQUE_REQUIREPASS", ""))


if __name__ == "__main__":
    sys.exit(main())
