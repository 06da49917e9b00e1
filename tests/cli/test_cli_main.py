"""The command itself: help, version, capabilities, unknown commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import replayssm
from replayssm.capability import CAPABILITIES
from replayssm.cli import BUILT_IN, main
from replayssm.cli.table import aligned, size

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for name in BUILT_IN:
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert line.endswith(".")
        assert len(line) <= 100


def test_help_loads_nothing_heavy():
    script = (
        "import sys; from replayssm.cli import main; main(['--help']);"
        "sys.exit(len({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: replayssm {name}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"replayssm {replayssm.__version__}\n"


def test_unknown_command(capsys):
    assert main(["fold"]) == 2
    assert "unknown command 'fold'; expected one of bench, capabilities" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["bench", "kernels"], ["tune"]])
def test_a_missing_package_is_said_in_a_line(arguments):
    """In a process of its own, whose modules nothing else has loaded."""
    block = "import sys; sys.modules['triton'] = None; from replayssm.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", block, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "triton" in done.stderr
    assert "replayssm doctor" in done.stderr


def test_every_public_name_resolves():
    assert set(replayssm.__all__) <= set(dir(replayssm))
    assert all(getattr(replayssm, name) is not None for name in replayssm.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = replayssm.nothing


def test_capabilities_page_is_what_the_command_prints(capsys):
    assert main(["capabilities", "--markdown"]) == 0
    page = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out, "run: replayssm capabilities --markdown > docs/capabilities.md"


def test_capabilities_name_every_backend(capsys):
    assert main(["capabilities"]) == 0
    text = capsys.readouterr().out
    assert all(name in text.splitlines() for name in CAPABILITIES)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (4 * 2**20, "4.00 MiB"), (16 * 2**20, "16.0 MiB"),
     (500 * 2**30, "500 GiB"), (2**52, "4096 TiB")],
)  # fmt: skip
def test_size(count, text):
    assert size(count) == text


def test_aligned_columns():
    lines = aligned(("name", "n"), [("a", "10"), ("long name", "5")], indent="")
    assert lines == ["name        n", "a          10", "long name   5"]
