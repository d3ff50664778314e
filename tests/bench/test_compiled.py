"""The compiled build: what is measured under its name is its code, not what lies here."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from deploy.compiled.build import STAMP, stamp_of
from tests.bench import load
from tests.bench.__main__ import parts_command
from tests.bench.servers import COMPILED, kinds
from tests.system.nodes import ROOT


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A build that can be told from ours: it doesn't even start."""
    root = tmp_path / "a build"
    package = root / "disque"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise SystemExit("planted")\n')
    return root


def options(monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    """What the bench makes of these words."""
    monkeypatch.delenv("C_DISQUE", raising=False)
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    return load.options(argparse.ArgumentParser())


def test_its_nodes_run_what_lies_there(elsewhere: Path, tmp_path: Path) -> None:
    (compiled,) = [kind for kind in kinds(compiled=elsewhere) if kind.title == COMPILED]
    node = compiled.make(tmp_path / "node")
    try:
        with pytest.raises(AssertionError, match="planted"):
            node.start()
    finally:
        node.kill()


def test_its_parts_are_those_that_lie_there(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # beside other tests nothing is measured
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    command = parts_command(elsewhere, tmp_path / "parts.json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "planted" in done.stdout + done.stderr


def test_where_none_is_named_none_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = options(monkeypatch, "--compiled", "")
    assert arguments.compiled is None
    assert COMPILED not in [kind.title for kind in arguments.servers]


def test_one_with_an_extension_module_is_measured_after_ours(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "disque" / "core").mkdir()
    for suffix in (".py", EXTENSION_SUFFIXES[0]):
        (elsewhere / "disque" / "core" / f"engine{suffix}").touch()
    (elsewhere / STAMP).write_text(stamp_of("1"))
    arguments = options(monkeypatch, "--compiled", str(elsewhere))
    assert arguments.compiled == elsewhere
    assert arguments.servers[1].title == COMPILED


@pytest.mark.parametrize("stamp", ["", "of another source\n", stamp_of("0")])
def test_one_of_another_source_or_for_no_speed_is_a_usage_error(
    stamp: str,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (elsewhere / "disque" / "core").mkdir()
    (elsewhere / "disque" / "core" / f"engine{EXTENSION_SUFFIXES[0]}").touch()
    (elsewhere / STAMP).write_text(stamp)
    with pytest.raises(SystemExit):
        options(monkeypatch, "--compiled", str(elsewhere))
    assert "`make compiled` again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["engine.py", "engine.cpython-27-other-machine.so", "other.py"])
def test_what_is_no_compiled_build_is_a_usage_error(
    name: str,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (elsewhere / "disque" / "core").mkdir()
    (elsewhere / "disque" / "core" / name).touch()
    with pytest.raises(SystemExit):
        options(monkeypatch, "--compiled", str(elsewhere))
    assert f"{elsewhere} is no compiled build" in capsys.readouterr().err
