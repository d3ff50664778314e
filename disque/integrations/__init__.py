"""Brokers for other people's task frameworks: `dramatiq`, `django_q`; Celery's is `disque.kombu_transport`."""
