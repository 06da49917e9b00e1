"""The small trained models that ship with the package, and their held-out text."""

from __future__ import annotations

from pathlib import Path

from replayssm import InputError

ROOT = Path(__file__).parent / "models"
NAMES = ("mamba2", "gdn", "kda")
RECALL = tuple(f"recall-{name}" for name in NAMES)
"""Smaller ones that were trained on the recall task alone."""
TEXTS = ("bible", "code")


def model_path(name_or_directory: str) -> Path:
    """A bundled model's directory, or a directory of one's own.

    Raises:
        InputError: neither a bundled name nor a directory with a config.json.
    """
    if name_or_directory in (*NAMES, *RECALL):
        return ROOT / name_or_directory
    path = Path(name_or_directory)
    if not (path / "config.json").is_file():
        raise InputError(
            f"model={name_or_directory!r} is neither a bundled model ({', '.join(NAMES)}) nor a directory with a config.json"
        )
    return path


def heldout_text(name: str) -> str:
    """Text that no bundled model was trained on: "bible" or "code"."""
    return (ROOT / f"heldout-{name}.txt").read_text(encoding="utf-8")
