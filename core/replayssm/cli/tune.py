"""`replayssm tune`: the launch shapes of this GPU, measured and written as a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replayssm.cli.bench import add_jobs, add_lists, chosen, jobs
from replayssm.errors import InputError

if TYPE_CHECKING:
    from replayssm.bench.tuning import Entry, Search
    from replayssm.kernels.tiles import Gpu

HELP = "Find the fastest launch shapes on this GPU and write its table."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_lists(parser)
    add_jobs(parser)
    parser.add_argument("--quick", action="store_true", help="batch 256 and T = 1, 4 where they are not given")
    parser.add_argument(
        "--try",
        dest="tries",
        nargs="+",
        default=[],
        metavar="FIELD=N,N",
        help="values of a field of the launch shape to try: value (rows of V a tile), count (tiles a program, 0 for all), "
        "registers (0 for no limit), shares (programs that share folds, 0 for one a fold), warps",
    )
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--out", type=Path, metavar="FILE", help="table to extend (default: the package's own)")


def run(args: argparse.Namespace) -> int:
    """Measure; the table is written after each operation."""
    from replayssm.bench.settings import selection
    from replayssm.bench.timing import cuda_machine
    from replayssm.bench.tuning import candidates, table_facts, tune
    from replayssm.bench.workers import Workers
    from replayssm.kernels.tiles import gpu_of, read_json, table_folder
    from replayssm.records import circumstances

    scenarios = selection(chosen(args), quick=args.quick).scenarios()
    search = parse_search(args.tries)
    for scenario in scenarios:
        candidates(scenario, search)
    if args.out is not None and args.out.is_dir():
        raise InputError(f"--out={args.out} is a folder; expected a file")
    with Workers(jobs(args)) as workers:
        machine = cuda_machine()
        gpu = gpu_of(machine.device)
        assert gpu is not None
        out = args.out or table_folder() / gpu.file_name
        if out.exists():
            # What cannot be extended is refused now, not after minutes of measuring.
            table_facts(gpu, read_json(out), (), {})
        facts = circumstances(machine.device, args.ref)
        meta = {name: facts[name] for name in ("versions", "git", "command")}
        for entry in tune(scenarios, search, machine, workers, lambda line: print(line, flush=True)):
            _extend(out, gpu, entry, meta)
    print(f"written to {out}")
    return 0


def parse_search(tries: Sequence[str]) -> Search:
    """`["value=16,32", "warps=1"]` → what to try; fields that are not named as by default.

    Raises:
        InputError: not of that form, an unknown field, or no number.
    """
    from dataclasses import fields

    from replayssm.bench.tuning import LIKELY, Search
    from replayssm.kernels.tiles import Tiles
    from replayssm.lists import split

    known = [field.name for field in fields(Tiles)]
    values = dict(LIKELY)
    for text in tries:
        name, equals, numbers = text.partition("=")
        found = split([numbers])
        if name not in known or not equals or not found or not all(part.isascii() and part.isdigit() for part in found):
            raise InputError(f"--try={text!r} must be FIELD=N,N with a field of {', '.join(known)} and whole numbers")
        values[name] = tuple(map(int, found))
    return Search(values)


def _extend(out: Path, gpu: Gpu, entry: Entry, meta: Mapping[str, Any]) -> None:
    from replayssm.bench.tuning import table_facts
    from replayssm.kernels.tiles import read_json
    from replayssm.records import write_json

    known = read_json(out) if out.exists() else None
    write_json(out, table_facts(gpu, known, [entry], meta))
