"""What is shipped to run nodes: files that name each other name what is there, and say what the server understands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from disque.server.config import DIRECTIVES, Config
from disque.server.configfile import load, read_content
from tests.docs.pages import ROOT, blocks, pages
from tests.docs.reference import metric_names

DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
UNIT = DEPLOY / "disque-broker.service"
SECRET = "long-enough-to-be-no-cause-of-a-warning"
# What the image adds to the commands of the distribution
PROGRAMS = {"disque-probe": "probe.py", "disque-prestop": "prestop.py"}


def settings(environment: dict[str, object]) -> dict[str, str]:
    """Variables as the server would see them; AssertionError for one that it would only warn of."""
    known = {f"DISQUE_{name.replace('-', '_').upper()}" for name in DIRECTIVES}
    assert [name for name in environment if name not in known] == []
    return {
        name: re.sub(r"\$\{?\w+[^}]*\}?", SECRET, str(text)) for name, text in environment.items()
    }


def sections(path: Path) -> list[tuple[str, str]]:
    """The settings of a unit, in order."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] not in "#["]
    return [(name, text) for name, _, text in (line.partition("=") for line in lines)]


# Docker


def test_nodes_of_compose_differ_in_what_must_differ_and_are_published_one_to_one() -> None:
    ports = [int(node["environment"]["DISQUE_PORT"]) for node in SERVICES.values()]
    assert ports == [7711, 7712, 7713]
    for (name, node), port in zip(SERVICES.items(), ports, strict=True):
        assert f"{port}:{port}" in node["ports"]
        assert node["environment"]["DISQUE_CLUSTER_ANNOUNCE_HOST"] == name
        assert f"{name}:{port}" in node["environment"]["DISQUE_CLUSTER_JOIN"].split()
        (volume,) = node["volumes"]
        assert volume.split(":")[1] == "/data"
        assert volume.split(":")[0] in COMPOSE["volumes"]
    published = [each.rpartition(":")[0] for node in SERVICES.values() for each in node["ports"]]
    assert len(published) == len(set(published))
    assert "127.0.0.1:8711" in published, "the page speaks no TLS here: to its own host alone"


@pytest.mark.parametrize("name", SERVICES)
def test_server_understands_what_compose_tells_it(name: str, tmp_path: Path) -> None:
    environment = settings(SERVICES[name]["environment"])
    loaded = load(["--dir", str(tmp_path)], environment)
    assert loaded.warnings == ()
    assert loaded.config.stomp_port == 61_613
    assert loaded.config.appendonly


def test_secrets_of_compose_come_from_the_file_that_is_shipped_as_an_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    example = (ROOT / ".env.example").read_text()
    assert (
        set(re.findall(r"^(\w+)=.", example, re.M))
        == wanted
        == {"DISQUE_PASSWORD", "CLUSTER_SECRET"}
    )
    assert ".env\n" in (ROOT / ".gitignore").read_text()


def test_image_is_built_from_what_the_context_lets_in() -> None:
    admitted = set(re.findall(r"^!([\w./]+)$", (ROOT / ".dockerignore").read_text(), re.M))
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    sources = [source for each in copied for source in each.split()]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert {source, source.split("/")[0]} & admitted, f"{source} isn't in the context"


def test_image_has_the_programs_that_others_call() -> None:
    for program, source in PROGRAMS.items():
        assert f"cp deploy/image/{source} /opt/disque/bin/{program}" in DOCKERFILE
    assert 'CMD ["disque-probe", "alive"]' in DOCKERFILE
    assert re.search(r"^USER disque$", DOCKERFILE, re.M)
    assert re.search(r"^VOLUME /data$", DOCKERFILE, re.M)


# Kubernetes


def objects(kind: str) -> dict[str, Any]:
    """All of one kind, by name."""
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


STATEFUL_SET = objects("StatefulSet")["disque-broker"]["spec"]
POD = STATEFUL_SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
LABELS = STATEFUL_SET["template"]["metadata"]["labels"]


def test_kubernetes_selectors_mean_the_pods() -> None:
    (budget,) = objects("PodDisruptionBudget").values()
    selectors = [each["spec"]["selector"] for each in objects("Service").values()]
    selectors += [
        STATEFUL_SET["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
    ]
    assert selectors
    for selector in selectors:
        assert selector.items() <= LABELS.items()
    assert budget["spec"]["maxUnavailable"] == 1


def test_kubernetes_lets_only_nodes_reach_the_bus() -> None:
    (policy,) = objects("NetworkPolicy").values()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= LABELS.items()
    named = {each["name"] for each in CONTAINER["ports"]}
    opened = {}
    for rule in policy["spec"]["ingress"]:
        opened |= {each["port"]: rule.get("from") for each in rule["ports"]}
    assert set(opened) == named
    assert [name for name, comers in opened.items() if comers] == ["bus"]
    assert opened["bus"] == [{"podSelector": policy["spec"]["podSelector"]}]


def test_kubernetes_pods_have_names_before_they_are_ready() -> None:
    headless = objects("Service")[STATEFUL_SET["serviceName"]]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert POD["enableServiceLinks"] is False


def test_kubernetes_names_lead_to_what_is_there() -> None:
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    for service in objects("Service").values():
        for each in service["spec"]["ports"]:
            assert ports[each.get("targetPort", each["name"])] == each["port"]
    claims = [each["metadata"]["name"] for each in STATEFUL_SET["volumeClaimTemplates"]]
    volumes = {*claims, *(each["name"] for each in POD["volumes"])}
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert set(mounts) == volumes
    assert mounts["data"] == "/data"
    account, (binding,) = POD["serviceAccountName"], objects("RoleBinding").values()
    assert account in objects("ServiceAccount")
    assert [each["name"] for each in binding["subjects"]] == [account]
    (rule,) = objects("Role")[binding["roleRef"]["name"]]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["statefulsets"], ["get"])
    assert rule["resourceNames"] == list(objects("StatefulSet"))


def test_server_understands_what_kubernetes_tells_it(tmp_path: Path) -> None:
    told = {each["name"]: each.get("value", SECRET) for each in CONTAINER["env"]}
    environment = settings(
        {
            # Kubernetes puts the other variables' values there
            name: re.sub(r"\$\((\w+)\)", lambda found: told[found[1]], text)
            for name, text in told.items()
            if name.startswith("DISQUE_")
        }
    )
    loaded = load(["--dir", str(tmp_path)], environment)
    assert loaded.warnings == ()
    names = [node.host for node in loaded.config.cluster_join]
    assert names == [
        f"disque-broker-{at}.{STATEFUL_SET['serviceName']}"
        for at in range(STATEFUL_SET["replicas"])
    ]
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    config = loaded.config
    assert ports == {
        "clients": config.port,
        "bus": config.bus_port,
        "page": config.page_port,
        "stomp": config.stomp_port,
    }
    assert config.is_page_exposed


def test_kubernetes_asks_by_programs_that_the_image_has() -> None:
    probes = [
        CONTAINER[f"{each}Probe"]["exec"]["command"]
        for each in ("startup", "liveness", "readiness")
    ]
    assert probes == [
        ["disque-probe", "alive"],
        ["disque-probe", "alive"],
        ["disque-probe", "ready"],
    ]
    assert CONTAINER["lifecycle"]["preStop"]["exec"]["command"] == ["disque-prestop"]
    user = re.search(r"--uid (\d+)", DOCKERFILE)
    assert user is not None
    assert POD["securityContext"]["runAsUser"] == POD["securityContext"]["fsGroup"] == int(user[1])


# systemd


def test_unit_starts_the_server_with_settings_that_it_understands(tmp_path: Path) -> None:
    told = sections(UNIT)
    (start,) = [text.split() for name, text in told if name == "ExecStart"]
    assert start[0].endswith("/disque-server")
    environment: dict[str, object] = {}
    for name, text in told:
        if name == "Environment":
            environment |= dict(each.split("=", 1) for each in text.split())
    credentials = {text.split(":")[0] for name, text in told if name == "LoadCredential"}
    for name, text in settings(environment).items():
        if name.endswith("_FILE"):
            assert text.removeprefix("%d/") in credentials
            secret = tmp_path / name
            secret.write_text(SECRET + "\n")
            environment[name] = str(secret)
    environment["DISQUE_DIR"] = str(tmp_path)
    words = [str(DEPLOY / Path(start[1]).name)]
    assert load(words, {name: str(text) for name, text in environment.items()}).warnings == ()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd isn't installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # What isn't installed here would be a complaint
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []
    assert done.returncode == 0, done.stderr


# The sample configuration


def test_server_understands_every_line_of_the_sample_once_it_is_taken_in() -> None:
    path = DEPLOY / "disque.conf"
    commented = [line.removeprefix("# ") for line in path.read_text().splitlines()]
    lines = [line for line in commented if line.partition(" ")[0] in DIRECTIVES]
    assert len(lines) > 30
    for line in lines:
        read_content(Config(), line.encode(), path)


# What pages say of it


def test_metrics_that_alerts_are_about_exist() -> None:
    known = set(re.findall(r"`(disque_\w+)`", metric_names()))
    known |= {f"{name}_bucket" for name in known}
    told = [
        name
        for page in pages()
        for block in blocks(page)
        if block.language == "yaml"
        for name in re.findall(r"\b(disque_\w+)\b", block.text)
    ]
    assert told
    assert [name for name in told if name not in known] == []


def test_yaml_of_pages_can_be_read() -> None:
    for page in pages():
        for block in blocks(page):
            if block.language == "yaml":
                assert yaml.safe_load(block.text), str(block)
