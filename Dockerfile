# perfd as an image: agent, aggregator and command line in one. Build it at the root of the repository.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# The compiler is for the NCCL plugin; it stays in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
RUN python3 -m venv /opt/perfd
COPY . .
RUN /opt/perfd/bin/python -m pip install --no-cache-dir --no-compile . \
 && /opt/perfd/bin/python -c "import pathlib, perfd_collectors.nccl as n; next(pathlib.Path(n.__file__).parent.glob('*.so'))" \
 && /opt/perfd/bin/python -m pip uninstall -y pip setuptools

FROM ${PYTHON}
LABEL org.opencontainers.image.title="perfd" \
      org.opencontainers.image.description="Tells how far a GPU job is from what the hardware allows, and why." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/perfd /opt/perfd
RUN groupadd --gid 10001 perfd \
 && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/lib/perfd perfd \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/perfd
# MALLOC_ARENA_MAX keeps the memory of threads that come and go in few arenas.
ENV PATH=/opt/perfd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    MALLOC_ARENA_MAX=2 \
    XDG_STATE_HOME=/var/lib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
USER 10001:10001
WORKDIR /var/lib/perfd
# 9460 HTTP of the aggregator, 9461 gRPC of the aggregator, 9462 metrics of an agent.
EXPOSE 9460 9461 9462
# Healthy while either role answers on its own port of this container.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
  CMD ["python3", "-c", "import socket,contextlib as c\nfor p in (9460, 9462):\n with c.suppress(OSError):\n  socket.create_connection(('127.0.0.1', p), 2).close(); raise SystemExit(0)\nraise SystemExit(1)"]
ENTRYPOINT ["perfd"]
CMD ["--help"]
