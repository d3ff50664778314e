# One node of disque-broker. Clients on DISQUE_PORT (7711), other nodes on that + 10000, data in /data.
#
#   docker build -t disque-broker .
#   docker run -e DISQUE_REQUIREPASS=... -p 7711:7711 -v disque:/data disque-broker
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY disque disque
RUN python -m venv --without-pip /opt/disque \
 && pip --disable-pip-version-check --python /opt/disque/bin/python install --no-cache-dir --no-compile . \
 && /opt/disque/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/disque/lib

FROM ${BASE}
# An application of its own venv, and the byte code of the part of Python's library that it starts with: the official
# image ships none, and our user could never write it.
COPY --from=build /opt/disque /opt/disque
ENV PATH=/opt/disque/bin:$PATH PYTHONUNBUFFERED=1
RUN python -c 'import disque.server.main, disque.server.app' \
 && useradd --system --uid 7711 --home-dir /data --no-create-home disque \
 && mkdir /data && chown disque /data
USER disque
WORKDIR /data
VOLUME /data
EXPOSE 7711 17711 61613
# Any answer to PING counts: a node with a password says NOAUTH, and is well.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["python", "-c", "import os, socket; p = os.environ.get('DISQUE_PORT', ''); s = socket.create_connection(('127.0.0.1', int(p) if p.isdigit() else 7711), 2); s.sendall(b'PING\\r\\n'); raise SystemExit(s.recv(16)[:5] not in (b'+PONG', b'-NOAU'))"]
ENTRYPOINT ["disque-server"]
CMD ["--dir", "/data"]
