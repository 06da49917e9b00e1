"""What a run found, as JSON: `meta` says where and how, `rows` are the measurements."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from replayssm import __version__
from replayssm.bench.ceilings import Ceilings
from replayssm.errors import InputError


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        layer, geometry, checkpoint, read_copy, batch, draft, phase: see `Scenario`.
        us: microseconds of a step of one layer.
        ordinary_us: the best conventional kernel of the same run; with T > 1 tokens it writes T state snapshots.
        ratio: ordinary_us / us.
        share_of_ceiling: least time for the bytes that must move, at the measured ceilings, / us.
    """

    layer: str
    geometry: str
    checkpoint: str
    read_copy: str | None
    batch: int
    draft: int
    phase: str
    us: float
    ordinary_us: float
    ratio: float
    share_of_ceiling: float


@dataclass
class Results:
    """Rows with their circumstances.

    Attributes:
        meta: device, versions, git ref, command, ceilings, settings; and for each row the launch shape and how every
            conventional kernel did.
        rows: in the order of measurement.
    """

    meta: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the JSON file.

        Raises:
            InputError: it cannot be written.
        """
        facts = {"meta": self.meta, "rows": [asdict(row) for row in self.rows]}
        write_json(path, facts)


def read_rows(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Meta and rows of a result file.

    Raises:
        InputError: it cannot be read, or is not a result.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return facts["meta"], [Row(**row) for row in facts["rows"]]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a result of `replayssm bench kernels`: {type(error).__name__}: {error}"
        ) from None


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a JSON file.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from None


def circumstances(device: torch.device, ref: str | None) -> dict[str, Any]:
    """Device, versions, git ref and command of this process."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or device.type,
        "versions": _versions(),
        "git": ref or git_ref(),
        "command": shlex.join(["replayssm", *sys.argv[1:]]),
    }


def ceiling_facts(ceilings: Ceilings) -> dict[str, float]:
    """Ceilings in their JSON form, GB/s."""
    return {f"{name}_gbps": round(value, 1) for name, value in asdict(ceilings).items()}


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
        "triton": _installed("triton"),
        "driver": driver.splitlines()[0] if driver else None,
    }


def _installed(distribution: str) -> str | None:
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
