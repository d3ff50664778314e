"""docker-compose.yml for real: three containers come up, carry jobs, are cut apart, heal, and go.

`python -m tests.by_hand.compose` needs an engine, docker-compose 1.29 or compose v2, and ports 7711-7713, 8711 and
61613-61615 free. It builds the image that users get. CI runs it where an engine can be had. Nothing that it starts
stays, volumes included.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial

from tests.system.nodes import ROOT, Resp, wait_until

PORTS = (7711, 7712, 7713)
PAGE = "http://127.0.0.1:8711"
PATIENCE_S = 60.0
VERB_S = 600.0  # the image's build is the longest
CUT_OFF = "disque-3"


class Compose:
    """One project of docker-compose, under a name of its own, with secrets of its own."""

    def __init__(self) -> None:
        self.password = secrets.token_hex(8)
        self._environment = os.environ | {
            "DISQUE_PASSWORD": self.password,
            "CLUSTER_SECRET": secrets.token_hex(16),
        }
        self.project = f"disque-check-{os.getpid()}"
        self._base = [*compose_command(), "-p", self.project]

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

    def tool(self, service: str, *words: str) -> str:
        """What the command `disque` says inside a container, whose node it asks."""
        said = f'disque -a "$DISQUE_REQUIREPASS" -p "$DISQUE_PORT" {" ".join(words)}'
        return self.run("exec", "-T", service, "sh", "-c", said).strip()

    def network(self, verb: str, service: str, *options: str) -> None:
        """`docker network connect` or `disconnect`: the container's own network, which is its only one."""
        container = self.run("ps", "-q", service).strip()
        command = ["docker", "network", verb, *options, f"{self.project}_default", container]
        subprocess.run(command, check=True, timeout=VERB_S)

    def inspect(self, template: str) -> list[str]:
        """One value of `docker inspect` for each container, stopped ones too."""
        names = self.run("ps", "-a", "-q").split()
        command = ["docker", "inspect", "-f", template, *names]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def client(self, port: int) -> Resp:
        """A connection from outside that has given the password."""
        client = Resp(port)
        client.call("AUTH", self.password)
        return client


def compose_command() -> list[str]:
    """Compose v2 if docker has it, else docker-compose."""
    v2 = ["docker", "compose"]
    found = subprocess.run([*v2, "version"], capture_output=True, check=False).returncode == 0
    return v2 if found else ["docker-compose"]


def told(client: Resp, *words: str) -> dict[str, str]:
    """INFO's or CLUSTER INFO's fields."""
    lines = client.call(*words).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def expect(what: str, got: object, wanted: object) -> None:
    """AssertionError that shows both, unless they are equal."""
    assert got == wanted, f"{what}: got {got!r}, wanted {wanted!r}"
    print(f"{what}: ok", flush=True)


def wait(what: str, probe: partial[bool]) -> None:
    """AssertionError unless this comes true in time."""
    wait_until(what, probe, within_s=PATIENCE_S, every_s=0.2)
    print(f"{what}: ok", flush=True)


def is_met(compose: Compose, port: int) -> bool:
    """This node knows two others and reaches them."""
    with compose.client(port) as client:
        info = told(client, "CLUSTER", "INFO")
    return info["cluster_known_nodes"] == "3" and info["cluster_reachable_nodes"] == "2"


def is_empty(compose: Compose, port: int) -> bool:
    """This node keeps no job, in whatever state."""
    with compose.client(port) as client:
        return told(client, "INFO", "jobs")["registered_jobs"] == "0"


def is_healthy(compose: Compose) -> bool:
    """Every container's own health check is content."""
    return set(compose.inspect("{{.State.Health.Status}}")) == {"healthy"}


def wait_met(compose: Compose) -> None:
    """All three see each other."""
    for port in PORTS:
        wait(f"{port} sees two others", partial(is_met, compose, port))


def wait_drained(compose: Compose) -> None:
    """Nothing is left anywhere."""
    for port in PORTS:
        wait(f"{port} is drained", partial(is_empty, compose, port))


def check_cluster(compose: Compose) -> None:
    """One job through three nodes, whose addresses are right outside, too."""
    with Resp(PORTS[0]) as stranger:
        code = stranger.error("ADDJOB", "q", "body", 0).split(" ", 1)[0]
    expect("a client without the password", code, "NOAUTH")
    with ExitStack() as stack:
        one, two, three = [stack.enter_context(compose.client(port)) for port in PORTS]
        addresses = sorted((node[1], node[2]) for node in one.call("HELLO")[2:])
        wanted = [(b"disque-%d" % n, b"771%d" % n) for n in (1, 2, 3)]
        expect("addresses in HELLO", addresses, wanted)
        job = one.call("ADDJOB", "q", "body", 5000, "REPLICATE", 3)
        got = two.call("GETJOB", "TIMEOUT", 5000, "FROM", "q")
        expect("added on 1, got on 2", got, [[b"q", job.encode(), b"body"]])
        expect("acked on 3", three.call("ACKJOB", job), 1)
    wait_drained(compose)
    table = compose.tool("disque-2", "nodes").splitlines()
    expect("nodes, by the tool in a container", [line.split()[2] for line in table[1:]], ["ok"] * 3)


def check_page(compose: Compose) -> None:
    """The page is on one port, behind the password; probes need none."""
    expect("health", page_status("/health"), 200)
    expect("a visitor without the password", page_status("/"), 401)
    expect("the page", page_status("/", compose.password), 200)
    expect("metrics", page_status("/metrics", compose.password), 200)


def page_status(path: str, password: str = "") -> int:
    """The HTTP status of a page."""
    request = urllib.request.Request(PAGE + path)
    if password:
        credentials = base64.b64encode(f"default:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


def check_partition(compose: Compose) -> None:
    """Cut one node off: both sides go on; heal: an end on one side is the end everywhere, nothing is lost."""
    with ExitStack() as stack:
        one, two = [stack.enter_context(compose.client(port)) for port in PORTS[:2]]
        job = one.call("ADDJOB", "split", "shared", 5000, "REPLICATE", 3, "RETRY", 2)
        compose.network("disconnect", CUT_OFF)
        began = time.monotonic()
        got = two.call("GETJOB", "TIMEOUT", 5000, "FROM", "split")
        expect("got on the larger side", got, [[b"split", job.encode(), b"shared"]])
        expect("acked there", two.call("ACKJOB", job), 1)
        ours = one.call("ADDJOB", "split", "larger", 5000, "REPLICATE", 2, "RETRY", 600)
        theirs = compose.tool(
            CUT_OFF, "ADDJOB", "lone", "smaller", "5000", "REPLICATE", "1", "RETRY", "600"
        )
        again = compose.tool(CUT_OFF, "GETJOB", "TIMEOUT", "60000", "FROM", "split").split()
        expect("got on the smaller side, too", again, ["split", job, "shared"])
        print(f"cut for {time.monotonic() - began:.0f} s", flush=True)
        compose.network("connect", CUT_OFF, "--alias", CUT_OFF)
        wait_met(compose)
        outcome = one.call("WAITJOB", job, "TIMEOUT", 20_000)
        expect("outcome", outcome, [[job.encode(), b"acked"]])
        for queue, id_, body in (("split", ours, b"larger"), ("lone", theirs, b"smaller")):
            got = one.call("GETJOB", "TIMEOUT", 20_000, "FROM", queue)
            expect(f"{queue} after the heal", got, [[queue.encode(), id_.encode(), body]])
            expect("acked", one.call("ACKJOB", id_), 1)
    wait_drained(compose)


def check_end(compose: Compose) -> None:
    """Everything is well to its end."""
    wait("all healthy", partial(is_healthy, compose))
    expect("user", compose.run("exec", "-T", "disque-1", "id", "-u").strip(), "7711")
    expect("ready", compose.run("exec", "-T", "disque-1", "disque-probe", "ready"), "")
    compose.run("stop")
    expect("exit codes of a stop", compose.inspect("{{.State.ExitCode}}"), ["0", "0", "0"])


def main() -> int:
    """Up, check, and down again whatever happened; 0 if all held."""
    compose = Compose()
    try:
        compose.run("up", "-d", "--build")
        wait_met(compose)
        for check in (check_cluster, check_page, check_partition, check_end):
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
