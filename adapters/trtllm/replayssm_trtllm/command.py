"""The `replayssm trtllm` command: the YAML and the directory that TensorRT-LLM's command line tools take."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

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
    """Add the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"  {name:<7} {text}" for name, text in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("file", nargs="?", help="check: the YAML to read")
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
    parser.add_argument("--decoding-type", default="MTP", help="drafter (default: %(default)s)")
    parser.add_argument(
        "--nested", metavar="NAME", help="nested model configuration of the text model, e.g. text_config"
    )
    parser.add_argument("--sm", type=int, help="compute capability to configure for, e.g. 100 (of the visible GPU)")


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    if args.action == "path":
        print(PLUGIN_DIRECTORY)  # noqa: T201  a command line prints
        return 0
    from replayssm_trtllm.config import ReplaySSMConfig

    if args.action == "schema":
        text = json.dumps(ReplaySSMConfig.model_json_schema(), indent=2)
    elif args.action == "check":
        text = _describe(args.file)
    elif args.action == "env":
        values = _config(args).to_env()
        text = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())
    else:
        speculative = None if args.draft is None else _speculation(args)
        text = _config(args).to_yaml(speculative, sm=args.sm, nested=args.nested).rstrip()
    print(text)  # noqa: T201  a command line prints
    return 0


def _speculation(args: argparse.Namespace) -> dict[str, Any]:
    return {"decoding_type": args.decoding_type, "max_draft_len": args.draft}


def _config(args: argparse.Namespace) -> Any:  # noqa: ANN401  pydantic is imported late
    from replayssm_trtllm.config import ReplaySSMConfig

    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if "window" in given and given["window"].lstrip("-").isdigit():
        given["window"] = int(given["window"])
    asked = args.draft is None and given.get("mode") != "native"
    given["decode"] = asked if args.decode is None else args.decode
    return ReplaySSMConfig.from_mapping(given)


def _describe(file: str | None) -> str:
    from replayssm import InputError
    from replayssm_trtllm.config import ReplaySSMConfig

    if file is None:
        raise InputError("check needs a YAML file: replayssm trtllm check replay.yaml")
    config = ReplaySSMConfig.from_yaml(file)
    return f"{config.resolved_mode}: {config!r}"
