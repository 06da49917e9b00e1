#!/usr/bin/env bash
# The FlashInfer adapter beside real FlashInfer, and beside vLLM that calls it, on a machine without a GPU: Python of both
# beside torch's CPU build, nothing of theirs compiled. Usage: ci/engines/flashinfer.sh [pytest arguments]
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"
RELEASES=${REPLAYSSM_FLASHINFER:-0.7.2 0.7.4}
# Empty for none: a wheel of 340 MB.
VLLM=${REPLAYSSM_VLLM-0.33.0}
# What their modules import here; their own lists have CUDA libraries.
flashinfer_imports=(
  apache-tvm-ffi certifi charset-normalizer click filelock idna jinja2 markupsafe ninja nvidia-ml-py packaging requests
  tabulate tqdm urllib3
)
vllm_imports=(
  aiohappyeyeballs aiohttp aiosignal attrs cachetools cbor2 cloudpickle fastapi frozenlist llguidance msgspec multidict openai
  openai-harmony opentelemetry-api partial-json-parser prometheus-client propcache psutil py-cpuinfo pybase64 pydantic
  pydantic-core pyzmq sniffio starlette uvloop xgrammar yarl
)

site() { # site FOLDER PACKAGES…: a folder for PYTHONPATH with these packages alone, made once
  if [ ! -e "$1/ready" ]; then
    pip install --quiet --disable-pip-version-check --no-compile --no-deps --target "$@"
    touch "$1/ready"
  fi
}

vllm_site() { # vllm_site FOLDER: what vLLM imports, and the Python of its wheel
  if [ ! -e "$1/ready" ]; then
    pip download --quiet --disable-pip-version-check --no-deps --dest "$1-wheel" "vllm==$VLLM"
    python ci/engines/unpack_python.py "$1-wheel"/*.whl "$1"
    rm -r "$1-wheel"
  fi
  site "$1" "${vllm_imports[@]}"
}

check() { # check PYTHONPATH PYTEST ARGUMENTS…
  PYTHONPATH="$1" pytest -o addopts="-q --strict-markers --strict-config -p no:cacheprovider" "${@:2}"
}

enter_venv flashinfer
pip install --quiet --disable-pip-version-check -e '.[test]'
for release in $RELEASES; do
  folder="build/flashinfer-$release"
  site "$folder" "flashinfer-python==$release" "${flashinfer_imports[@]}"
  PYTHONPATH="$folder" python -c "import flashinfer; assert flashinfer.__version__ == '$release', flashinfer.__version__"
  python tests/flashinfer/record_contract.py --check "$folder" "$release"
  check "$folder" tests/flashinfer/test_flashinfer_contract.py tests/flashinfer/test_flashinfer_real.py "$@"
done
if [ -n "$VLLM" ]; then
  vllm_site "build/vllm-$VLLM"
  TRITON_INTERPRET=1 check "$folder:build/vllm-$VLLM" tests/flashinfer/test_flashinfer_vllm.py "$@"
fi
