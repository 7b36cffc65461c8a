# Three images from one file: docker build --target coordinator|stage|ui .
# Only the stage image has torch: the CPU build, or another one by TORCH_INDEX_URL (the whl/cu... indexes hold CUDA's).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /venv
WORKDIR /build
COPY constraints.txt ./
COPY deploy/docker/ deploy/docker/

# What all three need. The images share these layers.
FROM venv AS packages
RUN /venv/bin/pip install -c constraints.txt -r deploy/docker/common.txt

FROM packages AS coordinator-venv
# For checkpoints in an object store: s3fs, gcsfs or adlfs.
ARG STORAGE=
RUN /venv/bin/pip install -c constraints.txt -r deploy/docker/coordinator.txt ${STORAGE}

FROM packages AS ui-venv
# Without what no page needs: tests of libraries, installers, and Arrow's ways to servers and object stores.
RUN /venv/bin/pip install -c constraints.txt -r deploy/docker/ui.txt \
    && cd /venv/lib/python3*/site-packages \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && rm -rf pip setuptools pkg_resources pyarrow/include pyarrow/*flight* pyarrow/*s3* pydeck/nbextension/static

FROM packages AS stage-venv
ARG STORAGE=
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN /venv/bin/pip install ${TORCH_INDEX_URL:+--extra-index-url ${TORCH_INDEX_URL}} \
        -c constraints.txt -r deploy/docker/stage.txt ${STORAGE}

FROM venv AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY protos/ protos/
COPY pipeline/ pipeline/
COPY coordinator/ coordinator/
COPY stage_server/ stage_server/
COPY tensor_worker/ tensor_worker/
COPY simulator/ simulator/
# The links in it lead to the folders beside it.
COPY culm/ culm/
COPY ui/ ui/
COPY examples/ examples/
COPY deploy/kubernetes/ deploy/kubernetes/
RUN /venv/bin/pip install --no-deps --target /culm .

FROM ${PYTHON_IMAGE} AS base
# /tls and /checkpoints are there so that a volume mounted on them belongs to the user.
RUN useradd --system --uid 10001 --create-home culm \
    && mkdir /tls /checkpoints && chown culm /tls /checkpoints
ENV PATH=/app/bin:/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1
WORKDIR /culm
COPY examples/*.toml examples/
USER 10001

# A health check takes 0.2 s of a core, and is to take less than a hundredth of one. While a container starts, Docker 25
# asks every 5 s. Docker lets a check run on that took longer than its timeout, so each one ends itself after 9 s.
FROM base AS coordinator
COPY --from=coordinator-venv /venv /venv
COPY --from=wheel /culm /app
ENV CULM_LISTEN=0.0.0.0:7070
EXPOSE 7070
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["culm", "health", "127.0.0.1:7070"]
ENTRYPOINT ["culm"]
CMD ["coordinator"]

FROM base AS ui
COPY --from=ui-venv /venv /venv
COPY --from=wheel /culm /app
# It has no certificate of its own for browsers: publish its port on loopback, or behind something that asks who comes.
ENV CULM_LISTEN=0.0.0.0:8501 CULM_INSECURE=1
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import signal; signal.alarm(9); import urllib.request as r; r.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]
ENTRYPOINT ["culm"]
CMD ["ui"]

# The last one, so that a build without --target makes it.
FROM base AS stage
COPY --from=stage-venv /venv /venv
COPY --from=wheel /culm /app
ENV CULM_LISTEN=0.0.0.0:7071
EXPOSE 7071
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 CMD ["culm", "health", "--role", "stage", "127.0.0.1:7071"]
ENTRYPOINT ["culm"]
CMD ["stage"]
