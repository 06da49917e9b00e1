#!/usr/bin/env bash
# The SGLang adapter in the real engine, on a machine without a GPU: its own virtual environment (2.6 GB, minutes), then
# tests/sglang. Usage: ci/engines/sglang.sh [pytest arguments], for one run a layer kind: ci/engines/sglang.sh -m 'not slow'
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"
SGLANG=${REPLAYSSM_SGLANG:-0.5.23}
ENVIRONMENT=${REPLAYSSM_SGLANG_ENVIRONMENT:-build/sglang}

# SGLang's wheel asks for packages with CUDA libraries; these are what it imports here, at versions that go together.
# Triton 3.9's interpreter refuses some of its kernels.
pinned=("sglang==$SGLANG" torchvision==0.28.0 apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 xgrammar==0.2.7 openai==2.8.0)
imported=(
  transformers==5.19.0 aiohttp cffi datasets dill distro einops fastapi gguf httpx ipython jsonschema loguru msgspec numpy
  nvidia-ml-py orjson partial-json-parser pillow prometheus-client psutil pybase64 pydantic python-multipart pyzmq requests
  scipy sentencepiece setproctitle sniffio soundfile tiktoken tqdm uvicorn uvloop watchfiles zstandard
)
tools=(editables hatchling hypothesis pytest pytest-timeout pytest-xdist)

if [ ! -e "$ENVIRONMENT/ready" ]; then
  "$PYTHON" -m venv "$ENVIRONMENT"
  # shellcheck disable=SC1091
  source "$ENVIRONMENT/bin/activate"
  pip install --quiet --disable-pip-version-check "$TORCH" triton==3.8.0
  pip install --quiet --disable-pip-version-check --no-deps "${pinned[@]}"
  pip install --quiet --disable-pip-version-check "${imported[@]}" "${tools[@]}"
  pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e tests/sglang/cpu_platform
  touch "$ENVIRONMENT/ready"
fi
# shellcheck disable=SC1091
source "$ENVIRONMENT/bin/activate"
# One engine at a time: each takes a core and a quarter of a minute to start.
exec env PYTHONPATH="$PWD/tests/sglang/cpu_platform/site" OMP_NUM_THREADS=1 \
  pytest -o addopts="-q --strict-markers --strict-config -p no:cacheprovider" tests/sglang "$@"
