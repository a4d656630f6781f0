# A GPU server: docker build -f docker/cuda.Dockerfile -t sglang-dspark-cuda .
#   docker run --gpus all -p 30000:30000 -v /path/to/models:/models sglang-dspark-cuda \
#     --model-path /models/target --dspark-draft /models/draft
FROM lmsysorg/sglang:v0.5.23
WORKDIR /opt/sglang-dspark
COPY . .
RUN pip install --no-build-isolation "setuptools>=77" "pybind11>=3.0" && pip install --no-build-isolation --no-deps .
EXPOSE 30000
ENTRYPOINT ["python3", "-m", "sglang_dspark", "serve", "--host", "0.0.0.0"]
