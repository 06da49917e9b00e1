#!/usr/bin/env bash
# The FlashInfer adapter beside real FlashInfer, on a machine without a GPU: each release beside torch's CPU build, its Python
# imported, no kernel compiled. Half a minute a release. Usage: ci/engines/flashinfer.sh [pytest arguments]
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"
RELEASES=${REPLAYSSM_FLASHINFER:-0.7.2 0.7.4}
# What FlashInfer's modules import here; its own list has CUDA libraries.
imported=(
  apache-tvm-ffi certifi charset-normalizer click filelock idna jinja2 markupsafe ninja nvidia-ml-py packaging requests
  tabulate tqdm urllib3
)
enter_venv flashinfer
pip install --quiet --disable-pip-version-check -e '.[test]'
for release in $RELEASES; do
  site="build/flashinfer-$release"
  if [ ! -e "$site/ready" ]; then
    pip install --quiet --disable-pip-version-check --no-deps --target "$site" "flashinfer-python==$release" "${imported[@]}"
    touch "$site/ready"
  fi
  PYTHONPATH="$site" python -c "import flashinfer; assert flashinfer.__version__ == '$release', flashinfer.__version__"
  python tests/flashinfer/record_contract.py --check "$site" "$release"
  PYTHONPATH="$site" pytest -o addopts="-q --strict-markers --strict-config -p no:cacheprovider" \
    tests/flashinfer/test_flashinfer_contract.py tests/flashinfer/test_flashinfer_real.py "$@"
done
