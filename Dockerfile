# perfd as an image: agent, aggregator and command line in one. Build it at the root of the repository.
#   docker build -t perfd .
# With W&B: --build-arg REQUIREMENTS=requirements-wandb.txt
# With NATS, PostgreSQL and S3-compatible storage: --build-arg REQUIREMENTS=requirements-scale.txt
# The same sources, base and SOURCE_DATE_EPOCH give the same layers: docs/deploy-kubernetes.md says how to check that.
# The digest is that of the index of all platforms, in which amd64 and arm64 are (docker-library/repo-info, 2026-08-25).
ARG PYTHON=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${PYTHON} AS build
# The compiler is for the NCCL plugin; it stays in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
# What perfd needs comes first, by hash: a change of perfd's own code leaves this layer alone.
COPY deploy/image/ deploy/image/
ARG REQUIREMENTS=requirements.txt
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --require-hashes -r deploy/image/requirements-pip.txt \
 && python3 -m venv --without-pip /opt/perfd \
 && /opt/build/bin/python -m pip --python /opt/perfd/bin/python install --require-hashes \
      -r deploy/image/$REQUIREMENTS \
 && /opt/build/bin/python -m pip install --require-hashes -r deploy/image/requirements-build.txt \
      -r deploy/image/requirements-sbom.txt
COPY . .
# A wheel without the plugin would be built too; an image without it is a mistake. Jobs copy it and the relay, which is
# static because it runs in their images, from lib/.
# Tests of libraries are of no use here. The list of what is installed is made before code is compiled, which nobody can
# write later.
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/build/bin/python -m pip --python /opt/perfd/bin/python install --no-deps --no-index /wheels/*.whl \
 && gcc -std=c11 -D_GNU_SOURCE -O2 -static -s -o /opt/perfd/lib/perfd-relay deploy/image/relay/relay.c \
 && ln -s "$(ls /opt/perfd/lib/python3*/site-packages/perfd_collectors/nccl/libnccl-profiler-perfd.so)" /opt/perfd/lib/ \
 && find /opt/perfd/lib -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -r {} + \
 && /opt/build/bin/cyclonedx-py environment --output-reproducible --output-file /opt/perfd/lib/sbom.cdx.json \
      --mc-type application --pyproject pyproject.toml /opt/perfd/bin/python \
 && install -m 0755 deploy/image/healthcheck /opt/perfd/bin/perfd-healthcheck \
 && /opt/perfd/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/perfd/lib

FROM ${PYTHON}
ARG SOURCE_DATE_EPOCH=0
LABEL org.opencontainers.image.title="perfd" \
      org.opencontainers.image.description="Tells how far a GPU job is from what the hardware allows, and why." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/perfd /opt/perfd
# useradd writes a date into /etc/shadow: that of SOURCE_DATE_EPOCH.
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
# 9460 HTTP of the aggregator, 9461 gRPC of the aggregator, 9462 health and metrics of an agent.
EXPOSE 9460 9461 9462
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 CMD ["perfd-healthcheck"]
ENTRYPOINT ["perfd"]
CMD ["--help"]
