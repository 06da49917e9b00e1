"""`replayssm doctor`: what works here. Runs in a broken environment: see `probes`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from replayssm.cli import probes
from replayssm.cli.probes import Check
from replayssm.cli.table import pairs

HELP = "What is installed here, what works, and why the rest does not."

_MARKS = {True: "ok", False: "FAILS", None: ""}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    names = sorted({*probes.ENGINES, *probes.adapter_names()})
    parser.add_argument("--engine", choices=names, help="ask for this engine: exit with 1 unless its adapter works")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings. Status 1 when the core, the configuration or the engine asked for does not work."""
    sections = collect(args.engine)
    works = all(check.ok for check in sections["required"])
    if args.json:
        facts = {name: [asdict(check) for check in checks] for name, checks in sections.items()}
        print(json.dumps({"works": works, **facts}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(sections)))
    return 0 if works else 1


def collect(engine: str | None) -> dict[str, list[Check]]:
    """Findings by section; those under "required" decide the exit status."""
    config = probes.config_check()
    adapters = list(probes.adapter_checks(engine))
    required = [probes.core_check(), *([config] if config else []), *([_verdict(engine, adapters)] if engine else [])]
    return {
        "machine": [*probes.platform_checks(), *probes.library_checks()],
        "backends": list(probes.backend_checks()),
        "engines": list(probes.engine_checks()),
        "adapters": adapters,
        "required": required,
    }


def _verdict(engine: str, reports: list[Check]) -> Check:
    if not reports:
        return Check(engine, False, "no adapter for it is installed")
    failing = [check.name for check in reports if not check.ok]
    return Check(engine, not failing, f"fails: {', '.join(failing)}" if failing else "its adapter works")


def _lines(sections: dict[str, list[Check]]) -> list[str]:
    lines = []
    for name, checks in sections.items():
        if checks:
            lines += [name, *pairs([(check.name, f"{_MARKS[check.ok]:<5}  {check.detail}") for check in checks]), ""]
    return lines[:-1]
