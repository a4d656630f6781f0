# The demo pair on a CPU: docker build -f docker/cpu.Dockerfile -t sglang-dspark . && docker run -p 30000:30000 sglang-dspark
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/sglang-dspark
COPY . .
RUN make setup
EXPOSE 30000
# The target is fetched and converted on first start; mount a volume here to keep it.
VOLUME /root/.cache/sglang_dspark
CMD ["make", "serve", "ARGS=--host 0.0.0.0"]
