"""`replayssm bench sglang`: the real engine's decode steps and concurrency, plain, with its own replay and with ours."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from replayssm.errors import InputError
from replayssm_sglang.bench.dummy import write_entry_point
from replayssm_sglang.bench.engines import MODES, OURS, OWN, PLAIN, replay_config, served, settings, sized, unsized
from replayssm_sglang.bench.geometries import CONFIGS, PUBLISHED, write_model
from replayssm_sglang.bench.processes import Job, measure, scratch

HELP = "The real engine on this GPU: decode steps of published geometries with dummy weights."
BATCHES = (1, 32, 64, 128, 256, 512)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--model", nargs="+", default=list(PUBLISHED), metavar="NAME", help=", ".join(PUBLISHED))
    parser.add_argument("--mode", nargs="+", default=[PLAIN, OWN, *OURS[:2]], metavar="NAME", help=", ".join(MODES))
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES), metavar="N", help="requests of a step")
    parser.add_argument(
        "--draft", nargs="+", type=int, default=[1], metavar="T", help="tokens of a verify step (1: standard decode)"
    )
    parser.add_argument(
        "--accept-length",
        type=float,
        default=2.5,
        metavar="N",
        help="tokens that a verify step yields, simulated (2.5)",
    )
    parser.add_argument("--prompt", type=int, default=256, metavar="N", help="tokens before the first step (256)")
    parser.add_argument("--steps", type=int, default=64, metavar="N", help="steps that are timed, whole windows (64)")
    parser.add_argument(
        "--concurrency",
        action="store_true",
        help="how many requests of prompt + steps tokens an engine holds at its memory fraction, in place of times",
    )
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="engines that start together (2)")
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="S", help="seconds to start an engine, and to measure one (900)"
    )
    parser.add_argument(
        "--logs", type=Path, default=Path("bench-sglang-logs"), metavar="DIR", help="the engines' output"
    )
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def run(args: argparse.Namespace) -> int:
    """Measure. Status 1 where an engine did not."""
    from replayssm_sglang.bench.report import Report

    _check(args)
    args.logs.mkdir(parents=True, exist_ok=True)
    report = Report.begin(args.ref, {name: getattr(args, name) for name in ("prompt", "steps", "accept_length")})
    with scratch() as folder:
        site = write_entry_point(Path(folder) / "site")
        jobs = [job for model in args.model for job in _jobs(args, str(write_model(model, Path(folder))), model)]
        for job, row in measure(jobs, args.logs, args.parallel, site, args.limit):
            report.add(job.labels, row)
            if args.json is not None:
                report.write(args.json)
    return 1 if report.errors else 0


def _jobs(args: argparse.Namespace, path: str, model: str) -> Iterator[Job]:
    """A process a mode, and a draft length."""
    accepted = {
        "SGLANG_SIMULATE_ACC_LEN": str(args.accept_length),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
    }
    for draft in args.draft:
        tokens = args.prompt + args.steps + 32 + 2 * draft
        module, variables = ("throughput", accepted) if draft > 1 else ("step", {})
        if args.concurrency:
            module = "capacity"
        for mode in (mode for mode in args.mode if served(model, mode, draft)):
            engine = settings(path, mode, draft) | (unsized() if args.concurrency else sized(args.batch, tokens))
            plan = {"engine": engine, "batches": args.batch, "prompt": args.prompt, "steps": args.steps}
            labels = {"model": model, "mode": mode, "draft": draft}
            yield Job(f"replayssm_sglang.bench.{module}", plan, replay_config(mode), labels, variables)


def _check(args: argparse.Namespace) -> None:
    _known("--model", args.model, tuple(CONFIGS))
    _known("--mode", args.mode, MODES)
    for name in ("prompt", "steps", "parallel"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name}={getattr(args, name)} must be at least 1")
    if args.limit <= 0:
        raise InputError(f"--limit={args.limit} must be above 0 seconds")
    for name in ("batch", "draft"):
        if min(getattr(args, name)) < 1:
            raise InputError(f"--{name}={min(getattr(args, name))} must be at least 1")
    if args.concurrency and args.parallel > 1:
        raise InputError("--concurrency takes all of the GPU's memory: --parallel must be 1")
    if max(args.draft) > 1 and not 1 <= args.accept_length <= min(d for d in args.draft if d > 1):
        raise InputError(f"--accept-length={args.accept_length} must be from 1 to the draft length")


def _known(flag: str, values: Sequence[str], known: Sequence[str]) -> None:
    unknown: list[Any] = [value for value in values if value not in known]
    if unknown:
        raise InputError(f"{flag} {unknown[0]} is unknown; expected {', '.join(known)}")
