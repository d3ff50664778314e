"""PyPI `dwq` with `pydisque-dwq`: its worker runs shell commands that its client sent; its monitor
shows the queues.

`python -m tests.by_hand.dwq_client` needs ports 7711-7713 free.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.by_hand.foreign import cluster, make_venv

JOBS = 20


def main() -> int:
    """One worker process at one node, clients at another."""
    with cluster(3) as (folder, nodes):
        python = make_venv(folder, "dwq", "pydisque-dwq", "setuptools<80")
        scripts = python.parent
        worker = subprocess.Popen(
            [
                str(scripts / "dwqw"),
                "-D",
                "localhost:7712",
                "-q",
                "default",
                "-n",
                "w",
                "-j",
                "4",
                "-QQ",
            ],
            cwd=folder,
        )
        passed = 0
        try:
            time.sleep(2)
            for number in range(JOBS):
                done = subprocess.run(
                    [
                        str(scripts / "dwqc"), "-q", "default", f"echo result {number}",
                    ],
                    cwd=folder,
                    env={"DWQ_DISQUE_URL": "localhost:7711", "PATH": f"{scripts}:/usr/bin:/bin"},
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )  # fmt: skip
                is_right = done.returncode == 0 and f"result {number}" in done.stdout
                passed += is_right
                if not is_right:
                    print(done.returncode, done.stdout[-500:], done.stderr[-1500:])
            shown = subprocess.run(
                [str(scripts / "dwqm"), "-D", "localhost:7713", "queue", "-l"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            print(shown.stdout[-1000:], shown.stderr[-1000:])
        finally:
            worker.terminate()
            worker.wait(20)
        left = [node.info("jobs")["registered_jobs"] for node in nodes.nodes]
        print(f"dwq: {passed} passed, {JOBS - passed} failed; jobs left on the nodes: {left}")
        return 0 if passed == JOBS else 1


if __name__ == "__main__":
    sys.exit(main())
