"""`python -m tests.by_hand.audit`: known vulnerabilities of what is installed beside this Python, by pip-audit.

pip-audit comes into a venv of its own. Fails only for a vulnerability that was found; where nothing can be found out
(no registry, no advisories), it says so. `.ci/run` runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")  # where advisories are; the first that knows anything counts
PATIENCE_S = 60.0


def main() -> int:
    """The exit status: 1 for a known vulnerability."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        frozen = run([sys.executable, "-m", "pip", "freeze", "--exclude-editable"])
        if frozen is None:
            return skip("no list of what is installed")
        (home / "requirements.txt").write_text(frozen)
        venv.create(home / "venv", with_pip=True)
        if run([str(home / "venv/bin/pip"), "install", "-q", "pip-audit"]) is None:
            return skip("pip-audit can't be installed")
        for service in SERVICES:
            words = ["--format", "json", "--progress-spinner", "off", "--no-deps", "--disable-pip"]
            words += ["--timeout", "5"]
            told = run(
                [
                    str(home / "venv/bin/pip-audit"),
                    *words,
                    "-s",
                    service,
                    "-r",
                    f"{home}/requirements.txt",
                ]
            )
            audited, found = judge(told or "")
            if audited:
                print(f"{audited} packages, advisories of {service}: {len(found)} vulnerabilities")
                print(*found, sep="\n", end="\n" if found else "")
                return 1 if found else 0
    return skip("no data reachable")


def judge(report: str) -> tuple[int, list[str]]:
    """How many packages were looked up, and a line for each vulnerability, by pip-audit's JSON."""
    try:
        rows: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 0, []
    known = [row for row in rows if "vulns" in row]
    found = [
        f"{row['name']} {row['version']}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'no version'}"
        for row in known
        for each in row["vulns"]
    ]
    return len(known), found


def run(words: list[str]) -> str | None:
    """What a program printed; None if it failed and printed nothing, or took too long."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode and not done.stdout.strip() else done.stdout


def skip(reason: str) -> int:
    """Nothing was found out, which is nobody's fault."""
    print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
