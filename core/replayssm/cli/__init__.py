"""The `replayssm` command. Standard library only up to the subcommand, so that `doctor` runs in a broken environment."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

BUILT_IN = {
    "bench": "replayssm.cli.bench",
    "capabilities": "replayssm.cli.capabilities",
    "doctor": "replayssm.cli.doctor",
    "plan": "replayssm.cli.plan",
    "tune": "replayssm.cli.tune",
}
GROUP = "replayssm.commands"


class Command(Protocol):
    """What a subcommand's module holds."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit status."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; `argv` defaults to the process's arguments. The exit status is 2 for bad usage or bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    modules = {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN
    chosen = arguments[0] if arguments else "--help"
    if chosen in ("--version", "-V"):
        from replayssm import __version__

        print(f"replayssm {__version__}")
        return 0
    if chosen in ("--help", "-h"):
        print(_help(modules))
        return 0
    if chosen not in modules:
        print(f"replayssm: unknown command {chosen!r}; expected one of {', '.join(sorted(modules))}", file=sys.stderr)
        return 2
    try:
        command = cast("Command", import_module(modules[chosen]))
    except (ImportError, OSError) as error:
        print(f"replayssm {chosen}: {error}; {_remedy(chosen)}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(prog=f"replayssm {chosen}", description=command.HELP)
    command.configure(parser)
    return _run(command, parser.parse_args(arguments[1:]), chosen)


def _run(command: Command, args: argparse.Namespace, name: str) -> int:
    from replayssm.errors import ReplaySSMError

    try:
        return command.run(args)
    except ReplaySSMError as error:
        print(f"replayssm {name}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"replayssm {name}: {error}; {_remedy(name)}", file=sys.stderr)
        return 2


def _remedy(name: str) -> str:
    if name in BUILT_IN:
        return "replayssm doctor says what is missing"
    return "install what it needs with: pip install 'replayssm[demo]'"


def _help(modules: Mapping[str, str]) -> str:
    width = max(map(len, modules))
    lines = [f"  {name:<{width}}  {_summary(module)}".rstrip() for name, module in sorted(modules.items())]
    usage = ["usage: replayssm COMMAND ...", "       replayssm --version", "", "commands (replayssm COMMAND --help):"]
    return "\n".join([*usage, *lines])


def _summary(module: str) -> str:
    """A module's `HELP`, read from its source: importing every command to list them would load torch and more."""
    top, *path = module.split(".")
    try:
        spec = find_spec(top)
        folders = (spec.submodule_search_locations if spec else None) or []
        file = Path(next(iter(folders))).joinpath(*path).with_suffix(".py")
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (ImportError, OSError, StopIteration, SyntaxError):
        return ""
    return next((text for node in body if (text := _help_text(node))), "")


def _help_text(node: ast.stmt) -> str:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return ""
    named = any(isinstance(target, ast.Name) and target.id == "HELP" for target in node.targets)
    return str(node.value.value) if named else ""
