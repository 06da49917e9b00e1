"""`replayssm eval state`: what each precision policy's state is off from float64 after thousands of steps."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import torch

from replayssm.cli.table import aligned
from replayssm.drift.measure import Error, Setup, drift, variants, with_products
from replayssm.errors import InputError
from replayssm.lists import names, numbers
from replayssm.precision import DOTS, PRESETS
from replayssm.records import check_writable, circumstances, write_json
from replayssm.recurrence import LayerKind, Recurrence

HELP = "Error of the state against float64 over thousands of steps, for each precision policy."
MOST_STEPS = 2**20
_PRODUCTS = [dot for dot in DOTS if dot is not None]

_SIZES = (
    ("heads", 8, "value heads; keys are shared by two, in KDA by none"),
    ("value-dim", 64, "V"),
    ("key-dim", 128, "K"),
    ("rows", 4, "sequences"),
    ("window", 16, "records between two flushes"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--layer", nargs="+", default=list(LayerKind), metavar="NAME", help="mamba2, gdn, kda")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument(
        "--dot", nargs="+", metavar="NAME", help="every preset with each of these products (triton): tf32, tf32x3"
    )
    parser.add_argument(
        "--draft", type=int, default=0, metavar="N", help="tokens of a step (default: two steps a window)"
    )
    parser.add_argument("--fp32-outputs", action="store_true", help="outputs without bf16's rounding (triton)")
    parser.add_argument(
        "--steps", nargs="+", default=["4096", "65536"], metavar="N", help="tokens to look after (default: 4096 65536)"
    )
    for name, default, text in _SIZES:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument("--backend", default="torch", metavar="NAME", help="naive, torch, triton (default: torch)")
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the tokens and of stochastic rounding")
    parser.add_argument("--ref", metavar="TEXT", help="git ref to record, where this is no repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")


def run(args: argparse.Namespace) -> int:
    """Measure layer by layer; a table for each."""
    layers = names("--layer", args.layer, list(LayerKind))
    presets = with_products({name: PRESETS[name] for name in names("--presets", args.presets, PRESETS)}, _dots(args))
    marks = numbers("--steps", args.steps, MOST_STEPS)
    device = _device(args.device)
    setups = [_setup(args, layer, device) for layer in layers]
    if args.json is not None:
        check_writable("--json", args.json)
    meta = circumstances(device, args.ref) | {"torch_device": args.device, "backend": args.backend, "seconds": 0.0}
    rows, started = [], time.perf_counter()
    for setup in setups:
        kind, found = str(setup.recurrence.kind), []
        meta["geometry"] = _geometry(setup)
        # Long runs are sometimes interrupted: what is known by then is in the file.
        for error in drift(setup, variants(presets, setup.recurrence), marks):
            found.append(error)
            rows.append({"layer": kind, **asdict(error)})
            meta["seconds"] = round(time.perf_counter() - started, 1)
            if args.json is not None:
                write_json(args.json, {"meta": meta, "rows": rows})
        print("\n".join([f"{kind}, {_geometry(setup)}", *_table(found), ""]), flush=True)
    return 0


def _dots(args: argparse.Namespace) -> list[str]:
    if args.backend != "triton" and (args.dot or args.fp32_outputs):
        raise InputError(f"--dot and --fp32-outputs need --backend=triton; {args.backend!r} has neither")
    return names("--dot", args.dot, _PRODUCTS) if args.dot else []


def _device(name: str) -> torch.device:
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError):
        raise InputError(f"--device={name!r} cannot be used here; expected cpu, or cuda where there is a GPU") from None
    return torch.device(name)


def _setup(args: argparse.Namespace, layer: str, device: torch.device) -> Setup:
    for name, _, _ in _SIZES:
        if getattr(args, name.replace("-", "_")) < 1:
            raise InputError(f"--{name}={getattr(args, name.replace('-', '_'))} must be at least 1")
    if not 0 <= args.draft < max(args.window, 2):
        raise InputError(f"--draft={args.draft} must be from 0 to {max(args.window - 1, 1)}, below --window")
    groups = args.heads if layer == LayerKind.KDA else max(1, args.heads // 2)
    recurrence = Recurrence(LayerKind(layer), args.heads, groups, args.value_dim, args.key_dim)
    return Setup(
        recurrence,
        args.rows,
        args.window,
        backend=args.backend,
        device=device,
        seed=args.seed,
        draft=args.draft,
        fp32_outputs=args.fp32_outputs,
    )


def _geometry(setup: Setup) -> str:
    r = setup.recurrence
    return f"{setup.rows} rows × {r.heads} heads × {r.value_dim} × {r.key_dim}, W = {setup.window}"


def _table(found: list[Error]) -> list[str]:
    header = ("policy", "steps", "state error", "worst head", "/ exact", "output error")
    exact = {error.steps: error.state for error in found if error.policy == "exact"}
    body = [
        [
            error.policy,
            f"{error.steps:,}",
            f"{error.state:.2e}",
            f"{error.worst:.2e}",
            f"{error.state / exact[error.steps]:.4g}" if error.steps in exact else "",
            f"{error.output:.2e}",
        ]
        for error in found
    ]
    return aligned(header, body)
