"""The `replayssm trtllm` command: the YAML and the directory that TensorRT-LLM's command line tools take."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from replayssm_trtllm.llm_fields import NESTED

HELP = "Configuration for TensorRT-LLM: YAML for --config, the directory for --custom_module_dirs, JSON schema."

ACTIONS = {
    "yaml": "print the YAML for trtllm-serve --config",
    "env": "print the environment variables as shell exports",
    "path": "print the directory for trtllm-serve --custom_module_dirs",
    "schema": "print the JSON schema of ReplaySSMConfig",
    "check": "read a YAML and say what it asks for, or why it is refused",
}

PLUGIN_DIRECTORY = Path(__file__).parent / "module_dir" / "replayssm_trtllm_plugin"
"""A package alone in its directory: the engine puts that directory on the import path."""

_FIELDS = ("mode", "window", "read_copy", "checkpoint_dtype", "stochastic_rounding", "philox_rounds", "seed", "backend")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with its own arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    parsers = {name: actions.add_parser(name, help=text, description=text) for name, text in ACTIONS.items()}
    parsers["check"].add_argument("file", type=Path, help="the YAML to read")
    for name in ("yaml", "env"):
        _add_fields(parsers[name])
    parsers["yaml"].add_argument(
        "--nested", choices=(NESTED,), help="where the text model of a composite model is configured"
    )
    for name in ("yaml", "env", "check"):
        parsers[name].add_argument(
            "--sm", type=int, help="compute capability to configure for, e.g. 100 (of the visible GPU)"
        )


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    try:
        print(_text(args), flush=True)  # noqa: T201  a command line prints
    except BrokenPipeError:
        # `| head` has read enough; what is still buffered would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _add_fields(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=("auto", "native", "plugin"), help="who does the replay (auto)")
    parser.add_argument("--window", help="records between two state writes, or auto (auto)")
    parser.add_argument("--read-copy", choices=("none", "fp8", "nvfp4"), help="copy that most steps read (none)")
    parser.add_argument("--checkpoint-dtype", choices=("auto", "float32", "bfloat16", "float16"), help="(auto)")
    parser.add_argument("--stochastic-rounding", action="store_true", default=None, help="of a float16 state")
    parser.add_argument("--philox-rounds", type=int, help="rounds of the native generator (10)")
    parser.add_argument("--seed", type=int, help="of the plugin's stochastic rounding (0)")
    parser.add_argument("--backend", choices=("auto", "torch", "triton"), help="operators of the plugin (auto)")
    parser.add_argument(
        "--decode",
        action=argparse.BooleanOptionalAction,
        help="replay ordinary decode (on, unless --draft asks for speculation)",
    )
    parser.add_argument("--draft", type=int, metavar="N", help="speculate with N drafts a step")
    parser.add_argument("--decoding-type", help="drafter, with --draft (MTP)")


def _text(args: argparse.Namespace) -> str:
    if args.action == "path":
        return str(PLUGIN_DIRECTORY)
    from replayssm_trtllm.config import ReplaySSMConfig

    if args.action == "schema":
        return json.dumps(ReplaySSMConfig.model_json_schema(), indent=2)
    if args.action == "check":
        config = ReplaySSMConfig.from_yaml(args.file, sm=args.sm)
        return f"{config.resolved_mode}: {config!r}"
    if args.action == "env":
        values = _config(args).to_env(_speculation(args), sm=args.sm)
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
    return str(_config(args).to_yaml(_speculation(args), sm=args.sm, nested=args.nested)).rstrip()


def _speculation(args: argparse.Namespace) -> dict[str, Any] | None:
    from replayssm import InputError

    if args.draft is not None:
        return {"decoding_type": args.decoding_type or "MTP", "max_draft_len": args.draft}
    if args.decoding_type is not None:
        raise InputError(f"--decoding-type {args.decoding_type} drafts nothing without --draft N; add it")
    return None


def _config(args: argparse.Namespace) -> Any:  # noqa: ANN401  pydantic is imported late
    from replayssm_trtllm.config import ReplaySSMConfig

    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if "window" in given and given["window"].lstrip("-").isdigit():
        given["window"] = int(given["window"])
    asked = args.draft is None and given.get("mode") != "native"
    given["decode"] = asked if args.decode is None else args.decode
    return ReplaySSMConfig.from_mapping(given)
