"""CuttingProxy: passes TCP on to a node, and cuts a connection once a command has been passed on, before its reply."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """A port that leads to another one."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._mark: bytes | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"disque://127.0.0.1:{self.port}"

    def cut_after(self, mark: bytes) -> None:
        """The next connection that sends this gets no reply to it; once."""
        self._mark = mark

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                node = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [client, node]
            is_cut = threading.Event()
            threading.Thread(target=self._ask, args=(client, node, is_cut), daemon=True).start()
            threading.Thread(target=self._answer, args=(node, client, is_cut), daemon=True).start()

    def _ask(self, client: socket.socket, node: socket.socket, is_cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self._mark is not None and self._mark in data:
                    self._mark = None
                    is_cut.set()
                node.sendall(data)
            node.shutdown(socket.SHUT_WR)

    def _answer(self, node: socket.socket, client: socket.socket, is_cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := node.recv(1 << 16):
                if is_cut.is_set():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
