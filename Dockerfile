# CPU image with the command line: docker build -t rl-training . && docker run --rm -v "$PWD:/work" rl-training --help
FROM python:3.11-slim

# A C++ compiler lets long runs compile their updates.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rl_training
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# CPU builds of torch: without a GPU the default ones are gigabytes of unused libraries.
ARG EXTRAS="parquet,export"
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c constraints.txt "torch==2.13.0+cpu" ".[${EXTRAS}]"

RUN useradd --create-home trainer
USER trainer
WORKDIR /work
ENTRYPOINT ["rl-training"]
CMD ["--help"]
