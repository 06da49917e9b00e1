"""What the user asked for: flags on SGLang's own parser, or the environment, as one `ReplayConfig`.

The resolved configuration travels to the processes that SGLang starts in REPLAYSSM_CONFIG, which they inherit.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace
from typing import NoReturn

from replayssm.config import ENVIRONMENT, ReplayConfig
from replayssm.errors import ReplaySSMError
from replayssm.layout import MAX_WINDOW
from replayssm.precision import PRESETS
from replayssm_sglang.calls import Foreign, Original
from replayssm_sglang.facts import SERVED_PRESETS

DEFAULT_PRESET = "exact"
_PRESET, _WINDOW, _CONFIG = "replayssm", "replayssm_window", "replayssm_config"


def add_flags(original: Original, parser: argparse.ArgumentParser, *args: Foreign, **kwargs: Foreign) -> None:
    """Around `ServerArgs.add_cli_args`: a group of our own, so that `--help` shows it and a typo is an error."""
    original(parser, *args, **kwargs)
    group = parser.add_argument_group(
        "ReplaySSM", "Decoding of recurrent layers that caches their inputs, not their state."
    )
    group.add_argument(
        "--replayssm",
        nargs="?",
        # Asked for without a preset. Not a word: argparse would look for it among the choices.
        const=True,
        choices=tuple(PRESETS),
        metavar="PRESET",
        help=f"Turn it on, with a precision: {', '.join(SERVED_PRESETS)} (default: {DEFAULT_PRESET}); "
        "a preset of the configuration stays where none is named here.",
    )
    group.add_argument(
        "--replayssm-window",
        type=_window,
        metavar="W",
        help=f"Records after which a state is written, 1 to {MAX_WINDOW} (default: {ReplayConfig.window}).",
    )
    group.add_argument(
        "--replayssm-config",
        metavar="JSON|PATH",
        help="Every field of the configuration, as JSON or a path to it; the other flags go before it.",
    )


def requested(args: argparse.Namespace) -> ReplayConfig | None:
    """The configuration that flags and environment ask for; None when neither does.

    Raises:
        SystemExit: malformed JSON, an unknown field, a value out of range; the reason in one line.
    """
    preset, window, text = (getattr(args, name, None) for name in (_PRESET, _WINDOW, _CONFIG))
    try:
        base = ReplayConfig.from_environment() if text is None else ReplayConfig.parse(text)
        if base is None and preset is None:
            if window is not None:
                refuse("--replayssm-window needs --replayssm (or --replayssm-config) beside it")
            return None
        config = base or ReplayConfig(preset=DEFAULT_PRESET)
        if isinstance(preset, str):
            config = replace(config, preset=preset, precision=None)
        return config if window is None else replace(config, window=window)
    except ReplaySSMError as error:
        refuse(str(error))


def active_config() -> ReplayConfig | None:
    """The configuration of this process, None where nobody asked.

    Raises:
        SystemExit: the environment's is malformed.
    """
    return requested(argparse.Namespace())


def publish(config: ReplayConfig) -> None:
    """Leave the configuration to the processes that this one starts."""
    os.environ[ENVIRONMENT] = json.dumps(asdict(config))


def refuse(reason: str) -> NoReturn:
    """End the process with the reason in one line. SGLang's plugin loader swallows any exception but this one."""
    raise SystemExit(f"replayssm: {' '.join(reason.split())}")


def _window(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MAX_WINDOW:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 1 to {MAX_WINDOW}")
    return value
