"""What `replayssm eval kl` is asked for; everything that can be wrong with it is refused before a model is loaded."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from replayssm import PRESETS, InputError, PrecisionPolicy, ReplayConfig, ReplaySSMError
from replayssm.config import BACKENDS
from replayssm.lists import names
from replayssm.records import check_writable
from replayssm_transformers.arguments import check_device, check_plot, read_text
from replayssm_transformers.bundled import heldout_text, model_path
from replayssm_transformers.evaluate import PREFILL, measuring_config
from replayssm_transformers.session import disable, enable

LENGTH = 8192
SHORTEST = PREFILL + 64
"""Enough predictions for a curve of 16 bins and a slope with its error."""
LONGEST = 2**20
MOST_ROWS = 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """Checked arguments.

    Attributes:
        length, rows: None for what the text holds, up to `LENGTH` and `MOST_ROWS`.
        source: what messages and the JSON call the text.
    """

    path: Path
    text: str
    source: str
    presets: list[str]
    baseline: str
    length: int | None
    rows: int | None
    window: int
    device: str
    backend: str
    dtype: str
    threads: int | None
    ref: str | None
    json: Path | None
    plot: Path | None


def check_arguments(args: argparse.Namespace) -> Settings:
    """Settings of a command line.

    Raises:
        InputError: a value out of range, an unknown name, no such directory or device, or a file that cannot be read or
            written.
    """
    limits = (("length", SHORTEST, LONGEST), ("rows", 1, 4096), ("threads", 1, os.cpu_count() or 1))
    for name, low, high in limits:
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"--{name}={value} must be from {low} to {high}")
    presets = names("--presets", args.presets, PRESETS)
    baseline = args.baseline or next((name for name in presets if name.startswith("shared-")), presets[0])
    if baseline not in presets:
        raise InputError(f"--baseline={baseline!r} is not measured; expected one of --presets: {', '.join(presets)}")
    for name, allowed in (("backend", BACKENDS), ("dtype", tuple(DTYPES))):
        if getattr(args, name) not in allowed:
            raise InputError(f"--{name}={getattr(args, name)!r} is unknown; expected one of {', '.join(allowed)}")
    ReplayConfig(window=args.window)
    check_device(args.device)
    if args.plot is not None:
        _check_matplotlib()
        check_plot(args.plot)
    if args.json is not None:
        check_writable("--json", args.json)
    return Settings(
        path=model_path(args.model),
        text=heldout_text("bible") if args.text is None else read_text("--text", args.text),
        source="the held-out text" if args.text is None else f"--text={str(args.text)!r}",
        presets=presets,
        baseline=baseline,
        **{name: getattr(args, name) for name in _AS_GIVEN},
    )


_AS_GIVEN = ("length", "rows", "window", "device", "backend", "dtype", "threads", "ref", "json", "plot")


def check_policies(model: Any, settings: Settings) -> dict[str, list[str]]:  # noqa: ANN401
    """Preset → lines on the layers that are measured.

    Raises:
        InputError: a preset that these layers, this dtype or this device cannot do; it names those that they can.
    """
    served, refused = {}, {}
    for name, policy in PRESETS.items():
        try:
            served[name] = _layers(model, policy, settings)
        except ReplaySSMError as error:
            refused[name] = error
    for name in settings.presets:
        if name in refused:
            expected = f"some of {', '.join(served)}" if served else "another --backend or --device: no preset is"
            raise InputError(f"--presets={name!r} is not served here: {refused[name]}; expected {expected}")
    return {name: served[name] for name in settings.presets}


def _layers(model: Any, policy: PrecisionPolicy, settings: Settings) -> list[str]:  # noqa: ANN401
    session = enable(model, measuring_config(policy, settings.window, settings.backend))
    disable(model)
    return session.layers


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("--plot needs matplotlib; pip install 'replayssm[demo]', or leave --plot out") from None
