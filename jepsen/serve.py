"""Serve: browse a store in a web browser, read-only, on loopback.

The front page lists the runs with their verdicts; everything else is a file of the store. A path is resolved before it
is opened, symbolic links included, and nothing outside the store is ever served.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from jepsen import store
from jepsen.report import style
from jepsen.report.markup import element, text_element
from jepsen.report.text import MARKS
from jepsen.report.timeline import document

HOST: Final = "127.0.0.1"
RUNS_MAX: Final = 1_000
# Anything else is shown as text; a server log must never run as a page.
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
CHUNK_BYTES: Final = 1 << 16
# Our pages need no script but the timeline's own, and load nothing.
POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src 'self'"
)


class Handler(BaseHTTPRequestHandler):
    """Answers GET below one store; `root` is set by `make_server`."""

    root: Path

    def do_GET(self) -> None:
        """Send the front page, a folder's listing, or a file; 404 for everything else."""
        wanted = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        found = resolve(self.root, wanted)
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif found == self.root.resolve():
            self._send_page(front_page(self.root))
        elif found.is_dir() and not wanted.endswith("/"):
            # Links of a listing are relative, so a folder's address needs its slash.
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            self.send_header("Location", urllib.parse.quote(wanted.lstrip("/")).join("//"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif found.is_dir():
            self._send_page(listing(found))
        else:
            self._send_file(found)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's own word
        """Say nothing: a browser's every request is no news."""

    def _send_page(self, page: str) -> None:
        body = page.encode()
        self._send_head(TYPES[".html"], len(body))
        self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        """Send a file as long as it is now; one that still grows is cut there."""
        with path.open("rb") as file:
            left = path.stat().st_size
            self._send_head(TYPES.get(path.suffix, "text/plain; charset=utf-8"), left)
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                self.wfile.write(chunk)
                left -= len(chunk)

    def _send_head(self, content_type: str, size: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(size))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """A server of this store on loopback, not yet running; port 0 takes a free one, see `server_port`.

    Raises OSError when the port is taken.
    """
    return ThreadingHTTPServer((HOST, port), type("StoreHandler", (Handler,), {"root": root}))


def resolve(root: Path, wanted: str) -> Path | None:
    """The file or folder that a URL's path means, None if there is none inside the store, or its name is hidden."""
    parts = [part for part in wanted.split("/") if part]
    if "\0" in wanted or any(part.startswith(".") for part in parts):
        return None
    base = root.resolve()
    found = base.joinpath(*parts).resolve()
    if not found.is_relative_to(base) or not (found.is_dir() or found.is_file()):
        return None
    return found


def front_page(root: Path) -> str:
    """All runs, newest first, with their verdicts; at most RUNS_MAX."""
    rows = [run_row(root, folder) for folder in store.run_folders(root)[:RUNS_MAX]]
    table = element("table", *rows) if rows else text_element("p", "No run yet.")
    return document("Runs", style.PAGE, [text_element("h1", "Runs"), table])


def run_row(root: Path, folder: Path) -> str:
    """One run of the front page: its mark, when, what, and the report."""
    results = store.read_results(folder)
    mark = MARKS.get(results["valid"], "?") if results else "not judged"
    path = folder.relative_to(root).as_posix()
    cells = [
        text_element("td", mark),
        element("td", link(f"/{path}/", path)),
        element("td", link(f"/{path}/report.html", "report") if results else ""),
        element("td", link(f"/{path}/timeline.html", "timeline") if results else ""),
    ]
    return element("tr", *cells)


def listing(folder: Path) -> str:
    """The files and folders of one folder."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    names: Sequence[str] = [f"{path.name}/" if path.is_dir() else path.name for path in entries]
    items = [element("li", link(name, name)) for name in ["../", *names]]
    return document(
        folder.name, style.PAGE, [text_element("h1", folder.name), element("ul", *items)]
    )


def link(path: str, name: str) -> str:
    """A link to a path, which is quoted."""
    return text_element("a", name, href=urllib.parse.quote(path))
