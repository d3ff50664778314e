"""docker-compose.yml for real: three containers come up, find each other, carry one job, and go.

`python -m tests.by_hand.compose` needs an engine, docker-compose 1.29 or compose v2, and ports
7711-7713 free. It builds the image that users get. CI runs it where an engine can be had. Nothing
that it starts stays, volumes included.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from functools import partial

from tests.system.nodes import ROOT, Resp, wait_until

PORTS = (7711, 7712, 7713)
PATIENCE_S = 60.0
VERB_S = 600.0  # the image's build is the longest


class Compose:
    """One project of docker-compose, under a name of its own, with secrets of its own."""

    def __init__(self) -> None:
        self.password = secrets.token_hex(8)
        self._environment = os.environ | {
            "DISQUE_PASSWORD": self.password,
            "CLUSTER_SECRET": secrets.token_hex(16),
        }
        self._base = [*compose_command(), "-p", f"disque-check-{os.getpid()}"]

    def run(self, *arguments: str) -> str:
        """Run one compose verb; its output, or CalledProcessError after printing it."""
        done = subprocess.run(
            [*self._base, *arguments],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERB_S,
        )
        if done.returncode != 0:
            print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
        done.check_returncode()
        return done.stdout

    def inspect(self, template: str) -> list[str]:
        """One value of `docker inspect` for each container, stopped ones too."""
        names = self.run("ps", "-a", "-q").split()
        command = ["docker", "inspect", "-f", template, *names]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def compose_command() -> list[str]:
    """Compose v2 if docker has it, else docker-compose."""
    v2 = ["docker", "compose"]
    found = subprocess.run([*v2, "version"], capture_output=True, check=False).returncode == 0
    return v2 if found else ["docker-compose"]


def told(client: Resp, *words: str) -> dict[str, str]:
    """INFO's or CLUSTER INFO's fields."""
    lines = client.call(*words).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def is_met(port: int, password: str) -> bool:
    """This node knows two others and reaches them."""
    with Resp(port) as client:
        client.call("AUTH", password)
        info = told(client, "CLUSTER", "INFO")
    return info["cluster_known_nodes"] == "3" and info["cluster_reachable_nodes"] == "2"


def expect(what: str, got: object, wanted: object) -> None:
    """AssertionError that shows both, unless they are equal."""
    assert got == wanted, f"{what}: got {got!r}, wanted {wanted!r}"
    print(f"{what}: ok", flush=True)


def check(compose: Compose) -> None:
    """The whole story, once the containers have been started."""
    for port in PORTS:
        met = partial(is_met, port, compose.password)
        wait_until(f"{port} sees two others", met, within_s=PATIENCE_S)
    with Resp(PORTS[0]) as stranger:
        code = stranger.error("ADDJOB", "q", "body", 0).split(" ", 1)[0]
    expect("a client without the password", code, "NOAUTH")
    one, two, three = clients = [Resp(port) for port in PORTS]
    for client in clients:
        client.call("AUTH", compose.password)
    addresses = sorted((node[1], node[2]) for node in one.call("HELLO")[2:])
    expect("addresses in HELLO", addresses, [(b"disque-%d" % n, b"771%d" % n) for n in (1, 2, 3)])
    job = one.call("ADDJOB", "q", "body", 5000, "REPLICATE", 3)
    got = two.call("GETJOB", "TIMEOUT", 5000, "FROM", "q")
    expect("added on 1, got on 2", got, [[b"q", job.encode(), b"body"]])
    expect("acked on 3", three.call("ACKJOB", job), 1)
    for client in clients:
        drained = partial(is_empty, client)
        wait_until("drained", drained, within_s=PATIENCE_S)
        client.close()
    print("drained: ok", flush=True)
    wait_until("all healthy", partial(is_healthy, compose), within_s=PATIENCE_S, every_s=0.5)
    expect("user", compose.run("exec", "-T", "disque-1", "id", "-u").strip(), "7711")
    compose.run("stop")
    expect("exit codes of a stop", compose.inspect("{{.State.ExitCode}}"), ["0", "0", "0"])


def is_empty(client: Resp) -> bool:
    """This node keeps no job, in whatever state."""
    return told(client, "INFO", "jobs")["registered_jobs"] == "0"


def is_healthy(compose: Compose) -> bool:
    """Every container's own health check is content."""
    return set(compose.inspect("{{.State.Health.Status}}")) == {"healthy"}


def main() -> int:
    """Up, check, and down again whatever happened; 0 if all held."""
    compose = Compose()
    try:
        compose.run("up", "-d", "--build")
        check(compose)
    except BaseException:
        print(compose.run("logs", "--no-color", "--tail", "60"))
        raise
    finally:
        compose.run("down", "-v", "--remove-orphans")
    print("compose: all held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
