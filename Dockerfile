# Every command of AtomMem; docs/compose.yaml starts it as a gateway. On a machine whose package index has torch for GPUs alone, name
# PyTorch's index of CPU wheels:   docker build --build-arg ATOMMEM_TORCH_INDEX=URL -t atommem .
FROM python:3.13-slim
ARG ATOMMEM_TORCH_INDEX
WORKDIR /atommem
COPY . .
RUN scripts/setup train,serve
ENV PATH=/atommem/.venv/bin:$PATH
CMD ["atommem", "--help"]
