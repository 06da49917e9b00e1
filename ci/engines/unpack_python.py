"""The Python of a wheel, and what it says of itself, without its libraries.

Usage: python unpack_python.py WHEEL FOLDER
"""

from __future__ import annotations

import sys
from zipfile import ZipFile

if __name__ == "__main__":
    wheel, folder = sys.argv[1:]
    with ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
        archive.extractall(folder, wanted)
