"""A Django site with Django-Q2 for test_django_q.py, run as a program: `python -m tests.system.django_q_site COUNT`.

It makes a database (a file, for the processes of the cluster share it), adds COUNT tasks and one that can't
work, runs a cluster until all have ended, and prints what the database knows then, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

import django
from django.conf import settings

PATIENCE_S = 40.0


def configure() -> None:
    """Settings, from the environment."""
    settings.configure(
        SECRET_KEY="of no use outside this test",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_q"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": os.environ["TEST_DATABASE"],
                "OPTIONS": {"timeout": 20},
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=True,
        Q_CLUSTER={
            "name": "site",
            "broker_class": "disque.integrations.django_q.DisqueBroker",
            "disque": os.environ["TEST_BROKER"],
            "workers": 2,
            "bulk": 4,
            "timeout": 20,
            "retry": 30,
            "max_attempts": 1,
            "guard_cycle": 0.1,
            "log_level": "ERROR",
        },
    )
    django.setup()


def main(count: int) -> None:
    """The whole life of a site."""
    configure()
    from django.core.management import call_command
    from django_q.brokers import get_broker
    from django_q.cluster import Cluster
    from django_q.models import Failure, Success
    from django_q.tasks import async_task

    call_command("migrate", verbosity=0)
    for number in range(count):
        async_task("math.sqrt", number * number)
    async_task("math.sqrt", -1)
    broker = get_broker()
    waiting = broker.queue_size()
    cluster = Cluster()
    cluster.start()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if Success.objects.count() + Failure.objects.count() > count and not broker.lock_size():
            break
        time.sleep(0.05)
    cluster.stop()
    told = {
        "waiting": waiting,
        "results": sorted(Success.objects.values_list("result", flat=True)),
        "failures": Failure.objects.count(),
        "left": [broker.queue_size(), broker.lock_size()],
        "info": broker.info(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
