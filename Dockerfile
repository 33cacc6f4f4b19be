# Heed as an image, without torch and without a compiler:
#
#   docker build -t heed .                       ONNX Runtime on the CPU
#   docker build -t heed:cuda --target cuda .    the same on CUDA; the host brings the driver
#
# The blocks are exported on the way, by torch's CPU build: from the folder wheels, where there is one, or from one that
# --build-context wheels=DIR names; otherwise it is fetched, or the build with CUDA if only that can be had.
# PYTHON may hold a digest: 3.11-slim-bookworm@sha256:...
# SOURCE, REVISION and CREATED become labels; docs/deployment.md has the commands for releases.
ARG PYTHON=3.11-slim-bookworm

FROM scratch AS wheels
COPY wheel[s] /

# The documentation, if `make docs` built it: the service answers with it at /docs/guide.
FROM scratch AS guide
COPY buil[d]/guid[e] /

# First what the export needs, without Heed, so that a change elsewhere exports nothing again.
FROM python:${PYTHON} AS exporter
WORKDIR /heed
COPY pyproject.toml constraints.txt LICENSE ./
COPY scripts/install_torch.py scripts/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels python scripts/install_torch.py \
    && touch README.md heed.py \
    && pip install --constraint constraints.txt '.[cpu,export]'
COPY clients/heed_options.py ./
COPY models models
COPY export export

FROM exporter AS export-cuda
RUN python -m export --cuda --repository /model_repository

FROM exporter AS export-cpu
RUN python -m export --repository /model_repository

FROM python:${PYTHON} AS environment
WORKDIR /heed
ENV PIP_PYTHON=/opt/heed/bin/python PIP_CONSTRAINT=/heed/constraints.txt
RUN python -m venv --without-pip /opt/heed
COPY pyproject.toml constraints.txt LICENSE README.md heed.py ./
COPY models models
COPY export export
COPY service service
COPY loadtest loadtest
COPY clients clients
ARG EXTRAS=otel,text,media

FROM environment AS environment-cuda
RUN --mount=type=cache,target=/root/.cache/pip pip install ".[gpu,${EXTRAS}]" \
    && find /opt/heed -type d -name tests -prune -exec rm -r {} +
RUN --mount=type=bind,from=guide,target=/guide mkdir -p /opt/heed/share/heed && cp -r /guide /opt/heed/share/heed/guide

FROM environment AS environment-cpu
RUN --mount=type=cache,target=/root/.cache/pip pip install ".[cpu,${EXTRAS}]" \
    && find /opt/heed -type d -name tests -prune -exec rm -r {} +
RUN --mount=type=bind,from=guide,target=/guide mkdir -p /opt/heed/share/heed && cp -r /guide /opt/heed/share/heed/guide

FROM python:${PYTHON} AS runtime
LABEL org.opencontainers.image.title="Heed" \
      org.opencontainers.image.description="An HTTP inference service for attention: the output, and the weights." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="MIT"
ENV PATH=/opt/heed/bin:$PATH HEED_HOST=0.0.0.0 HEED_MODEL_REPOSITORY=/model_repository
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --start-interval=1s CMD ["heed", "probe"]
ENTRYPOINT ["heed"]
CMD ["serve"]

# NVIDIA's libraries come as wheels with ONNX Runtime: a CUDA base image would bring a second set.
FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=export-cuda /model_repository /model_repository
COPY --from=environment-cuda /opt/heed /opt/heed
RUN ["python", "-c", "import service.cli.serve"]
ARG SOURCE REVISION CREATED
LABEL org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
USER 10001:10001

# As root, the import leaves the standard library's bytecode, which nobody can write later.
FROM runtime AS cpu
COPY --from=export-cpu /model_repository /model_repository
COPY --from=environment-cpu /opt/heed /opt/heed
RUN ["python", "-c", "import service.cli.serve"]
ARG SOURCE REVISION CREATED
LABEL org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
USER 10001:10001
