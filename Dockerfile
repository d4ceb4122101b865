# The server in a container, about 0.5 GB, without torch:
#
#     docker build -t nnclr_hub .
#     docker run -p 127.0.0.1:8000:8000 -v nnclr-data:/data nnclr_hub
#
# Other targets: `--target gpu` adds torch for attention maps and GPUs, `--target scale` the drivers of Milvus and Ray,
# `--target train` the training program.
# The first start creates a key, prints it once and stores it in the volume, unless NNCLR_WRITE_KEYS or NNCLR_API_KEYS
# is set.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS packages
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# One layer of pinned packages, which changes only with them.
COPY deploy/requirements.txt /src/deploy/requirements.txt
RUN pip install --no-cache-dir --requirement /src/deploy/requirements.txt

FROM packages AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY weights weights
COPY nnclr_hub nnclr_hub
COPY training training
COPY serving serving
COPY app app
RUN pip install --no-cache-dir --no-deps .

FROM build AS build-gpu
RUN pip install --no-cache-dir --constraint deploy/requirements.txt ".[serve,torch]"

FROM build AS build-scale
RUN pip install --no-cache-dir --constraint deploy/requirements.txt ".[serve,scale]"

FROM build AS build-train
RUN pip install --no-cache-dir --constraint deploy/requirements.txt ".[serve,train]"

FROM python:${PYTHON}-slim AS runtime
RUN useradd --uid 10001 --create-home nnclr && mkdir -p /data/cache && chown -R nnclr: /data
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NNCLR_CACHE=/data/cache \
    HF_HOME=/data/cache/huggingface \
    NNCLR_STORE=/data/store
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["nnclr"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--keys", "/data/keys"]

FROM runtime AS gpu
COPY --from=build-gpu /opt/venv /opt/venv

FROM runtime AS scale
COPY --from=build-scale /opt/venv /opt/venv

FROM runtime AS train
COPY --from=build-train /opt/venv /opt/venv

FROM runtime AS serve
COPY --from=build /opt/venv /opt/venv
