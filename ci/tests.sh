#!/usr/bin/env bash
# The README's second line, then the static checks.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
enter_venv tests
pip install --quiet --disable-pip-version-check -e '.[test]'
pytest "$@"
ruff check .
ruff format --check .
mypy
lint-imports
