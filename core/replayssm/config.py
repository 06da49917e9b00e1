"""The one configuration object. Flags, environment and engine adapters map onto it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from replayssm.capability import CAPABILITIES
from replayssm.errors import InputError
from replayssm.layout import MAX_DRAFT, MAX_WINDOW
from replayssm.precision import PRESETS, PrecisionPolicy
from replayssm.schedule import FlushPolicy

ENVIRONMENT = "REPLAYSSM_CONFIG"
BACKENDS = ("auto", *CAPABILITIES)
CHECKS = ("auto", "always", "never")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """How ReplaySSM runs in a model.

    Attributes:
        window: W, committed records after which a flush is due (1 to 256).
        max_draft: T, most new tokens of one step (1 to 64); speculation with n drafts needs n + 1.
        preset: named precision policy, see `PRESETS`.
        precision: an explicit policy in place of the preset's.
        flush: flush schedule.
        backend: "auto" (the fastest that serves the layer on its device), "triton" (fused kernels), "torch" or "naive".
        check_inputs: "always", "never", or "auto": on CPU; on CUDA checks of values would wait for the device.
        seed: Philox seed of stochastic rounding, 0 to 2^63 − 1.

    Raises:
        InputError: a value out of range; the message names the field, the value and what is allowed.
    """

    window: int = 16
    max_draft: int = 8
    preset: str = "exact"
    precision: PrecisionPolicy | None = None
    flush: FlushPolicy = FlushPolicy()
    backend: str = "auto"
    check_inputs: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (("window", 1, MAX_WINDOW), ("max_draft", 1, MAX_DRAFT), ("seed", 0, 2**63 - 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InputError(f"{name}={value!r} must be an integer from {low} to {high}")
        for name, allowed in (("preset", tuple(PRESETS)), ("backend", BACKENDS), ("check_inputs", CHECKS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is unknown; expected one of {', '.join(allowed)}")
        for name, kind in (("flush", FlushPolicy), ("precision", PrecisionPolicy)):
            value = getattr(self, name)
            if not isinstance(value, kind) and not (name == "precision" and value is None):
                raise InputError(f"{name}={value!r} must be a {kind.__name__}")

    @property
    def policy(self) -> PrecisionPolicy:
        """The precision policy in force."""
        return self.precision or PrecisionPolicy.preset(self.preset)

    def checks_values(self, device_type: str) -> bool:
        """Whether values are checked on a device ("cpu", "cuda")."""
        return self.check_inputs == "always" or (self.check_inputs == "auto" and device_type == "cpu")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReplayConfig:
        """From plain data; `flush` and `precision` are objects of their own fields.

        Raises:
            InputError: an unknown field or a bad value.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"config is a {type(values).__name__}; expected a mapping of fields")
        known = dict(_known(cls, values, "config"))
        for name, kind in (("flush", FlushPolicy), ("precision", PrecisionPolicy)):
            value = known.get(name)
            if isinstance(value, Mapping):
                known[name] = kind(**_known(kind, value, name))
            elif value is not None and not isinstance(value, kind):
                names = ", ".join(field.name for field in fields(kind))
                raise InputError(f"{name}={value!r} must be an object with some of {names}")
        return cls(**known)

    @classmethod
    def parse(cls, text: str) -> ReplayConfig:
        """From JSON text, or from a path to a JSON file.

        Raises:
            InputError: neither JSON nor a readable file, or a bad field.
        """
        if not isinstance(text, str):
            raise InputError(f"config is a {type(text).__name__}; expected JSON text or a path")
        if not text.lstrip().startswith("{"):
            try:
                text = Path(text).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise InputError(f"config {text!r} is neither a JSON object nor a readable file: {error}") from None
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"config is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"config is a JSON {type(values).__name__}; expected an object")
        return cls.from_dict(values)

    @classmethod
    def from_environment(cls) -> ReplayConfig | None:
        """From REPLAYSSM_CONFIG (JSON or a path), None when it is not set."""
        text = os.environ.get(ENVIRONMENT)
        return cls.parse(text) if text else None


def _known(kind: type, values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    names = [field.name for field in fields(kind)]
    unknown = sorted(set(values) - set(names), key=str)
    if unknown:
        raise InputError(
            f"{where} has unknown field {', '.join(map(repr, unknown))}; expected some of {', '.join(names)}"
        )
    return values
