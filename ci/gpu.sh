#!/usr/bin/env bash
# The part of the proof that needs a GPU, with what is installed: tests, memory checks, then speeds. Usage: ci/gpu.sh [FOLDER FOR RESULTS]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD/core:$PWD/adapters/flashinfer:$PWD/adapters/transformers:$PWD/adapters/trtllm${PYTHONPATH:+:$PYTHONPATH}"
out=${1:-benchmarks/results}
failed=0
run() { # name command...
  local name=$1
  shift
  "$@" > "$out/$name.log" 2>&1 || failed=1
  echo "== $name"
  tail -3 "$out/$name.log"
}
pytest=(python3 -m pytest -q -p no:cacheprovider -o addopts=--strict-markers --tb=short)
run kit "${pytest[@]}" -n 12 tests/conformance/test_backends_gpu.py tests/kernels/test_graphs_gpu.py tests/kernels/test_many_rows_gpu.py
run trtllm "${pytest[@]}" -n 4 tests/trtllm/test_trtllm_gpu.py tests/conformance/test_trtllm.py
run flashinfer "${pytest[@]}" -n 4 tests/flashinfer/test_flashinfer_gpu.py
run trained-models "${pytest[@]}" -n 4 tests/transformers/test_trained_models_gpu.py
for tool in memcheck racecheck; do
  run "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 python3 tests/kernels/small_shapes.py
done
run kernels python3 -m replayssm bench kernels --quick --draft 1 4 8 --json "$out/kernels.json"
exit "$failed"
