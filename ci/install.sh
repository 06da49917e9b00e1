#!/usr/bin/env bash
# The README's first line in a clean environment, from the built wheel: contents, install, demo, doctor.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
fresh_venv install
pip install --quiet --disable-pip-version-check build
rm -rf build/dist
python -m build --wheel --outdir build/dist .
python ci/wheel_contents.py build/dist/*.whl
pip install --quiet --disable-pip-version-check "$(echo build/dist/*.whl)[demo]"
# Away from the tree, so that nothing but the installed package can serve.
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
cd "$outside"
replayssm --version
replayssm doctor
time replayssm demo --json demo.json --plot demo.png
test -s demo.json && test -s demo.png
