# One node of disque-broker, with its web page and the command `disque`. Clients on DISQUE_PORT (7711), other nodes on
# that + 10000, the page on that + 1000 (loopback, unless DISQUE_HTTP_BIND opens it), data in /data.
#
#   docker build -t disque-broker .
#   docker run -e DISQUE_REQUIREPASS=... -e DISQUE_APPENDONLY=yes -p 7711:7711 -v disque:/data disque-broker
ARG BASE=python:3.13-slim-bookworm
ARG BUILD=${BASE}

FROM ${BUILD} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY disque disque
COPY deploy/image deploy/image
COPY deploy/compiled deploy/compiled
# --build-arg COMPILED=1 --build-arg BUILD=python:3.13-bookworm: the hottest modules as C (docs/performance.md)
ARG COMPILED=0
RUN export DISQUE_COMPILED=$COMPILED \
 && python -m venv --without-pip /opt/disque \
 && pip --disable-pip-version-check --python /opt/disque/bin/python install --no-cache-dir --no-compile '.[cli,web]' \
 && /opt/disque/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/disque/lib \
 && cp deploy/image/probe.py /opt/disque/bin/disque-probe \
 && cp deploy/image/prestop.py /opt/disque/bin/disque-prestop \
 && chmod 755 /opt/disque/bin/disque-probe /opt/disque/bin/disque-prestop

FROM ${BASE}
# An application of its own venv, and the byte code of the part of Python's library that it starts with: the official
# image ships none, and our user could never write it.
COPY --from=build /opt/disque /opt/disque
ENV PATH=/opt/disque/bin:$PATH PYTHONUNBUFFERED=1
RUN python -c 'import disque.server.main, disque.server.app, disque.web.app, disque.cli.main' \
 && useradd --system --uid 7711 --home-dir /data --no-create-home disque \
 && mkdir /data && chown disque /data
USER disque
WORKDIR /data
VOLUME /data
EXPOSE 7711 8711 17711 61613
# Any answer counts: a node that loads its log, or can't write it, must not be replaced for that.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["disque-probe", "alive"]
ENTRYPOINT ["disque-server"]
CMD ["--dir", "/data"]
