"""The tree's own hygiene: what a reader would trip over."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import replayssm

ROOT = Path(__file__).parents[2]


def _tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if name.endswith(suffixes)]


def test_every_public_name_has_a_docstring():
    missing = [name for name in replayssm.__all__ if name[0].isupper() and not getattr(replayssm, name).__doc__]
    assert not [name for name in missing if name != "PRESETS"]


def test_links_between_documents_resolve():
    broken = []
    for page in _tracked(".md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} → {target}")
    assert not broken


def test_changelog_knows_the_version():
    assert f"## {replayssm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("marker", ["TO" + "DO", "FIX" + "ME", "X" * 3])
def test_no_loose_ends_in_code(marker):
    found = [
        str(path.relative_to(ROOT)) for path in _tracked(".py", ".sh") if marker in path.read_text(encoding="utf-8")
    ]
    assert not found
