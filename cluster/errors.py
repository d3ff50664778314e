"""Whose fault was it? One class for each answer that somebody can react to."""

from __future__ import annotations


class ClusterError(Exception):
    """Base of all errors of this package."""


class RemoteProtocolError(ClusterError):
    """A peer sent what the protocol forbids: drop the link, note it, go on."""


class LocalProtocolError(ClusterError):
    """Our caller broke a contract of this package."""


class NodesFileError(ClusterError):
    """nodes.conf can't be used and must not be overwritten; the message names the line and what is wrong with it."""
