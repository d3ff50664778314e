"""What another program takes into its process with a transport or a broker: the client, and nothing of the server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.nodes import ROOT

FOREIGN = ("cluster", "trio", "disque.core", "disque.server", "disque.broker", "disque.aof")


@pytest.mark.parametrize("name", ["disque.kombu_transport", "disque.integrations.dramatiq"])
def test_importing_takes_only_the_client(name: str) -> None:
    question = f"import sys, {name}; print([each for each in {FOREIGN} if each in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", question], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
