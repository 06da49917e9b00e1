"""Check that a wheel holds exactly the tracked files of the packages, no more and no less.

Usage: python ci/wheel_contents.py dist/replayssm-….whl
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import PurePosixPath

ROOTS = ("core", "adapters/flashinfer", "adapters/sglang", "adapters/transformers", "adapters/trtllm")


def tracked() -> set[str]:
    """Paths of the packages' files as they should stand in the wheel."""
    listed = subprocess.run(["git", "ls-files", "-z", *ROOTS], check=True, capture_output=True, text=True).stdout
    files = [PurePosixPath(name) for name in listed.split("\0") if name]
    return {str(file.relative_to(root)) for file in files for root in ROOTS if file.is_relative_to(root)}


def packed(wheel: str) -> set[str]:
    """Paths in the wheel, without its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def main(wheel: str) -> int:
    """Print the differences; 1 if there are any."""
    tree, contents = tracked(), packed(wheel)
    for name in sorted(tree - contents):
        print(f"missing from the wheel: {name}")
    for name in sorted(contents - tree):
        print(f"not in the tree: {name}")
    print(f"{wheel}: {len(contents)} files, {len(tree ^ contents)} differences from the tree")
    return int(tree != contents)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
