"""PyPI `django-q` 1.3.9: its own test of its Disque broker, against a node on 7711.

`python -m tests.by_hand.django_q_client`; later releases and django-q2 dropped that broker.
"""

from __future__ import annotations

import sys

from tests.by_hand.foreign import cluster, find_python, make_venv, run, unpack_sdist

ROUNDS = 3


def main() -> int:
    """Run its test_disque, three times; pytest prints the counts."""
    with cluster(1) as (folder, nodes):
        source = unpack_sdist(folder, "django-q==1.3.9")
        packages = (
            "django<4",
            "redis<5",
            "django-redis",
            "django-picklefield<3.2",
            "blessed",
            "arrow",
            "pytest",
            "pytest-django<4.6",
        )
        python = make_venv(folder, *packages, "setuptools<80", python=find_python("3.9"))
        words = (
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "DJANGO_SETTINGS_MODULE=django_q.tests.settings",
        )
        test = "django_q/tests/test_brokers.py::test_disque"
        worst = 0
        for _ in range(ROUNDS):
            worst = max(worst, run(str(python), "-m", "pytest", *words, test, folder=source))
            for node in nodes.nodes:
                node.call("DEBUG", "FLUSHALL")
        return worst


if __name__ == "__main__":
    sys.exit(main())
