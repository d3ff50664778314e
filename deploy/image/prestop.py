#!/usr/bin/env python3
"""disque-prestop: what a pod of the StatefulSet does before it is stopped: leaves the cluster if it won't come back.

A pod that is restarted, moved or upgraded comes back with its volume: it just stops. One whose number is no longer
among the replicas was scaled away: it hands its jobs to the others first. Which of the two it is stands in the
StatefulSet, which the pod's service account may read. If that can't be found out, nothing is done: the volume stays.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10.0


def main() -> int:
    """Leave, or don't; 0 if this is done."""
    name, _, ordinal = os.environ["HOSTNAME"].rpartition("-")
    try:
        is_over = is_scaled_away(stateful_set(name), int(ordinal))
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"disque-prestop: can't read the StatefulSet {name}: {error}\n")
        return 0
    if not is_over:
        return 0
    path = os.environ.get("DISQUE_REQUIREPASS_FILE")
    known = Path(path).read_text().rstrip("\r\n") if path else os.environ.get("DISQUE_REQUIREPASS")
    environment = {**os.environ, **({"DISQUE_PASSWORD": known} if known else {})}
    port = os.environ.get("DISQUE_PORT", "7711")
    command = ["disque", "-p", port, "leave", "--wait"]
    return subprocess.run(command, env=environment, check=False).returncode


def is_scaled_away(found: dict[str, Any], ordinal: int) -> bool:
    """True if the set goes on without this pod; False also if the set itself is being deleted."""
    if "deletionTimestamp" in found["metadata"]:
        return False
    spec = found["spec"]
    first = spec.get("ordinals", {}).get("start", 0)
    return bool(ordinal >= first + spec["replicas"] > first)


def stateful_set(name: str) -> dict[str, Any]:
    """The StatefulSet of this pod, asked of the API. OSError, ValueError."""
    folder = Path(os.environ.get("DISQUE_PRESTOP_ACCOUNT", ACCOUNT))
    host, port = (os.environ[f"KUBERNETES_SERVICE_{word}"] for word in ("HOST", "PORT"))
    host = f"[{host}]" if ":" in host else host
    namespace = (folder / "namespace").read_text().strip()
    request = urllib.request.Request(
        f"https://{host}:{port}/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}",
        headers={"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"},
    )
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    # Clusters' own authorities often lack an extension that Python 3.13 has begun to ask for
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


if __name__ == "__main__":
    sys.exit(main())
