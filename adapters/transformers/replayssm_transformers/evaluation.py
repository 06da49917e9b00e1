"""The `replayssm eval` command: its parts, each a module with `HELP`, `configure` and `run`."""

from __future__ import annotations

import argparse

from replayssm.cli import Command, eval_state
from replayssm_transformers.kl import command as eval_kl
from replayssm_transformers.reads import command as eval_reads
from replayssm_transformers.recall import command as eval_recall

HELP = "How far a precision preset moves a model's next-token distributions, its state and its answers."
PARTS: dict[str, Command] = {"kl": eval_kl, "reads": eval_reads, "recall": eval_recall, "state": eval_state}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the parts."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="|".join(PARTS))
    for name, part in PARTS.items():
        part.configure(commands.add_parser(name, help=part.HELP, description=part.HELP))


def run(args: argparse.Namespace) -> int:
    """Do the chosen part."""
    return PARTS[args.what].run(args)
