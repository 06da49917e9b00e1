"""What belongs beside a measurement: where, with what and by which command it was made; and the file that holds it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from replayssm import __version__
from replayssm.errors import InputError


def check_writable(option: str, path: Path) -> None:
    """A file that can be written; an existing one is left as it is.

    Raises:
        InputError: a directory, a directory that is missing, or no permission.
    """
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        expected = "a file in a directory that exists and is writable"
        raise InputError(f"{option}={str(path)!r} cannot be written: {error.strerror}; expected {expected}") from None
    if not existed:
        path.unlink()


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a JSON file whole: who interrupts, or reads meanwhile, finds the one before or the new one.

    Raises:
        InputError: it cannot be written.
    """
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    target = path.resolve()
    # A device, or a pipe, has no file beside it to take its place.
    aside = target.with_name(f".{target.name}.{os.getpid()}") if target.is_file() or not target.exists() else target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        if aside != target:
            aside.replace(target)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from None


def circumstances(device: torch.device, ref: str | None = None) -> dict[str, Any]:
    """Device, versions, git ref and command of this process."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or device.type,
        "versions": _versions(),
        "git": ref or git_ref(),
        "command": shlex.join(["replayssm", *sys.argv[1:]]),
    }


def git_ref() -> str:
    """The commit of this source tree, with "+" when files differ from it; "unknown" outside a repository."""
    where = Path(__file__).parent
    ref = _output(["git", "-C", str(where), "rev-parse", "--short=12", "HEAD"])
    if ref is None:
        return "unknown"
    changed = _output(["git", "-C", str(where), "status", "--porcelain", "--untracked-files=no"])
    return ref + ("+" if changed else "")


def _versions() -> dict[str, str | None]:
    driver = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return {
        "replayssm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": installed("triton"),
        "driver": driver.splitlines()[0] if driver else None,
    }


def installed(distribution: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _output(command: Sequence[str]) -> str | None:
    """A command's output, None where it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
