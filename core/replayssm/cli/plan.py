"""`replayssm plan`: what ReplaySSM would cost and save in a published hybrid model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields

import torch

from replayssm.cli.plan_text import render
from replayssm.errors import InputError
from replayssm.hybrid import read_hybrid
from replayssm.planning import Plan, PlanSettings, make_plan
from replayssm.precision import PRESETS

HELP = "What ReplaySSM costs and saves in a published hybrid model, from its config.json."


_NUMBERS = (
    ("batch", int, "N", "sequences decoded together"),
    ("draft", int, "N", "T, new tokens of a step: 1 is ordinary decode, n drafts need n + 1"),
    ("window", int, "N", "W, committed records after which a flush is due"),
    ("acceptance", float, "PROBABILITY", "probability that a draft is accepted when those before it were"),
    ("memory_gib", float, "GIB", "GiB for sequences, on one rank"),
    ("tp", int, "N", "tensor-parallel ranks; figures are of one rank"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    defaults = PlanSettings()
    parser.add_argument("--config", required=True, metavar="PATH", help="a model's config.json, or its directory")
    for name, kind, metavar, text in _NUMBERS:
        default = getattr(defaults, name)
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default {default:g})")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="count the KV cache of this many tokens, too")
    parser.add_argument("--preset", choices=list(PRESETS), default=defaults.preset, help="whose buffers are listed")
    parser.add_argument("--json", action="store_true", help="print the same facts as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    if not args.config:
        raise InputError("--config='' is empty; expected a model's config.json, or its directory")
    settings = PlanSettings(**{field.name: getattr(args, field.name) for field in fields(PlanSettings)})
    plan = make_plan(read_hybrid(args.config), settings)
    print(to_json(plan) if args.json else "\n".join(render(plan)))
    return 0


def to_json(plan: Plan) -> str:
    """The plan as JSON text; what is a property of the model is spelled out."""
    facts = asdict(plan)
    model = plan.model
    facts["model"] |= {
        "state_bytes": model.state_bytes,
        "conv_bytes": model.conv_bytes(plan.settings.draft),
        "kv_token_bytes": model.kv_token_bytes,
    }
    facts["unit"] = "bytes, counted from the layout; no times are measured"
    return json.dumps(facts, indent=2, default=_plain, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"{type(value).__name__} has no JSON form")
