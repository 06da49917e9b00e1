# Sourced by the other scripts: virtual environments under build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
# The CPU build of torch; a plain "torch" would bring several GB of CUDA libraries that no test here uses.
TORCH=${REPLAYSSM_TORCH:-torch==2.13.0}

enter_venv() { # enter_venv NAME: the one of this run where REPLAYSSM_VENV names it, for torch alone takes minutes; a fresh one otherwise
    if [ -z "${REPLAYSSM_VENV:-}" ]; then
        fresh_venv "$1"
    else
        # shellcheck disable=SC1090
        source "build/$REPLAYSSM_VENV/bin/activate"
    fi
}

fresh_venv() { # fresh_venv NAME: makes and enters build/NAME with torch in it
    rm -rf "build/$1"
    "$PYTHON" -m venv "build/$1"
    # shellcheck disable=SC1090
    source "build/$1/bin/activate"
    pip install --quiet --disable-pip-version-check "$TORCH"
}
