"""The `replayssm` command. Standard library only up to the subcommand, so that `doctor` runs in a broken environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

BUILT_IN = {
    "capabilities": "replayssm.cli.capabilities",
    "doctor": "replayssm.cli.doctor",
    "plan": "replayssm.cli.plan",
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
    """Entry point; `argv` defaults to the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    extra = {point.name: point for point in entry_points(group=GROUP)}
    names = sorted({*BUILT_IN, *extra})
    chosen = arguments[0] if arguments else "--help"
    if chosen in ("--version", "-V"):
        from replayssm import __version__

        print(f"replayssm {__version__}")
        return 0
    if chosen not in names:
        return _usage(chosen, names)
    try:
        command = _load(chosen, extra.get(chosen))
    except ImportError as error:
        print(
            f"replayssm {chosen}: {error}; install what it needs with: pip install 'replayssm[demo]'", file=sys.stderr
        )
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


def _load(name: str, point: EntryPoint | None) -> Command:
    module = import_module(BUILT_IN[name]) if name in BUILT_IN else cast("EntryPoint", point).load()
    return cast("Command", module)


def _usage(chosen: str, names: Sequence[str]) -> int:
    asked = chosen in ("--help", "-h")
    stream = sys.stdout if asked else sys.stderr
    if not asked:
        print(f"replayssm: unknown command {chosen!r}", file=stream)
    print(f"usage: replayssm {{{','.join(names)}}} ...   (replayssm COMMAND --help)", file=stream)
    return 0 if asked else 2
