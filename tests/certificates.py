"""Certificates for tests: an authority, and what it signs, as files. They are real, made anew at each run."""

from __future__ import annotations

import ssl
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import trustme

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


@attrs.frozen
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """One certificate authority; its own certificate lies at `ca`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str, *hosts: str, until: datetime | None = None) -> Pair:
        """Sign for these hosts (127.0.0.1 if none is given); the files are named for `name`, and replaced."""
        since = None if until is None else until - timedelta(days=1)
        signed = self._authority.issue_cert(
            *(hosts or ("127.0.0.1",)), not_before=since, not_after=until
        )
        pair = Pair(
            self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key"
        )
        signed.private_key_pem.write_to_path(str(pair.key))
        pair.cert.write_bytes(b"".join(each.bytes() for each in signed.cert_chain_pems))
        return pair

    def client(self, own: Pair | None = None) -> ssl.SSLContext:
        """A client's context that believes this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context
