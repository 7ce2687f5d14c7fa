# syntax=docker/dockerfile:1
# One image for every role: `penstock worker -Q cpu`, `penstock beat`, `penstock migrate`, `penstock convert` …

FROM python:3.12-slim AS build
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/penstock
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE celeryconfig.py penstock_entry.py ./
COPY pipeline pipeline
COPY tasks tasks
# Wheels only: nothing needs a compiler, and this build of OpenCV needs no system libraries.
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/penstock/bin/pip install --only-binary :all: --no-binary penstock -c constraints.txt .

FROM python:3.12-slim
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
