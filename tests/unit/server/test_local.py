"""The first steps that `make run` prints can be typed as they stand."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from disque.server import local
from tests.system.nodes import free_port


def test_steps_go_to_three_nodes_in_turn() -> None:
    text = local.first_steps([7711, 7712, 7713], Path("data"))
    assert "3 nodes run and know each other: 127.0.0.1, ports 7711, 7712, 7713." in text
    assert "See them all on a page: http://127.0.0.1:8711/\n" in text
    if shutil.which("redis-cli"):
        assert '  redis-cli -p 7711 ADDJOB hello "my first job" 5000\n' in text
        assert "  redis-cli -p 7712 GETJOB FROM hello\n" in text


def test_without_redis_cli_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            said.append(sock.recv(1000))
            sock.sendall(b"+D-id\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("PATH", "/nonexistent")
        port = listener.getsockname()[1]
        text = local.first_steps([port], Path("data"))
        line = next(each for each in text.splitlines() if "ADDJOB" in each)
        monkeypatch.undo()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        shell = line.strip().replace("python3", sys.executable, 1)
        done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=20, check=True)
        thread.join(20)
    assert said == [b'ADDJOB hello "my first job" 5000\r\n']
    assert done.stdout.strip() == b"+D-id"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--nodes", "0"], "--nodes must be between 1 and 100, got 0"),
        (["--port", "70000"], "--port must be between 1 and 55532, got 70000"),
    ],
)
def test_impossible_number_is_told(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        local.main(flags)
    assert complaint in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^--dir: .*/file/\d+ can't be made: Not a directory$"):
        local.main(["--nodes", "1", "--port", str(free_port()), "--dir", str(tmp_path / "file")])


def test_a_node_that_ends_leaves_the_others_and_the_line_that_starts_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = []
    for port in (1, 2):
        words = ["disque-server", "--dir", f"a folder/{port}"]
        error_path = tmp_path / str(port)
        error_path.touch()
        process = subprocess.Popen(["sh", "-c", f"exit {port}"])
        process.wait()
        nodes.append(local.LocalNode(port, words, process, error_path))
    with pytest.raises(SystemExit, match=r"^node 2 ended with status 2$"):
        local._watch(nodes)
    said = capsys.readouterr().out
    assert said == (
        "\nnode 1 ended with status 1; the others go on. To start it again:\n"
        "\n  disque-server --dir 'a folder/1'\n"
    )
