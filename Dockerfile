# The server in a container:
#
#     docker build -t nnclr_hub .
#     docker run -p 127.0.0.1:8000:8000 -v nnclr-data:/data nnclr_hub
#
# The first start creates a key, prints it once and stores it in the volume, unless NNCLR_WRITE_KEYS or NNCLR_API_KEYS
# is set. For a machine without a GPU, use the CPU index from pytorch.org, which saves several GB:
#
#     docker build --build-arg TORCH_INDEX=... -t nnclr_hub .

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=""
ARG EXTRAS=demo,openvino
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# torch in a separate layer: it is by far the largest dependency, and changes less often than the rest
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY weights weights
COPY nnclr_hub nnclr_hub
COPY training training
COPY serving serving
COPY app app
RUN pip install --no-cache-dir ".[${EXTRAS}]"
# MODEL is downloaded and verified during the build. Without it the server uses the starter in the package, or NNCLR_MODEL
ARG MODEL=""
ENV NNCLR_CACHE=/opt/models HF_HOME=/opt/models/huggingface
RUN mkdir -p /opt/models && if [ -n "$MODEL" ]; then nnclr info "$MODEL"; fi

FROM python:${PYTHON}-slim
RUN useradd --uid 10001 --create-home nnclr && mkdir /data && chown nnclr: /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=nnclr /opt/models /opt/models
ARG MODEL=""
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NNCLR_CACHE=/opt/models \
    HF_HOME=/opt/models/huggingface \
    NNCLR_MODEL=$MODEL \
    NNCLR_STORE=/data/store
USER nnclr
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["nnclr"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--keys", "/data/keys"]
