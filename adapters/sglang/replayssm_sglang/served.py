"""What a machine serves: layers and presets, or why not. For `replayssm doctor`; needs no engine."""

from __future__ import annotations

import torch

from replayssm import LayerKind, Recurrence, ReplayConfig, ReplaySSMError
from replayssm.precision import PRESETS
from replayssm_sglang.facts import ModelFacts
from replayssm_sglang.session import Session

Report = list[tuple[str, bool, str]]

_DIM = 128
"""K and V of the published models."""


def report() -> Report:
    """`(name, ok, detail)`: a line a layer kind, and one of the presets that all of them have here."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = f"standard decode, chains and trees on {device}, backend {Session(ReplayConfig()).backend(device)}"
    lines: Report = []
    for kind in LayerKind:
        reason = refusal(kind, "exact", device)
        lines.append((str(kind), not reason, reason or where))
    return [*lines, _presets(device)]


def refusal(kind: LayerKind, preset: str, device: torch.device) -> str:
    """Why a layer kind is not served with a preset; empty where it is."""
    facts = ModelFacts(Recurrence(kind, 2, 1, _DIM, _DIM), torch.bfloat16)
    try:
        for tree in (False, True):
            Session(ReplayConfig(preset=preset), draft=4, tree=tree, facts=facts).check(device)
    except ReplaySSMError as error:
        return str(error)
    return ""


def _presets(device: torch.device) -> tuple[str, bool, str]:
    on, off = [], []
    for preset in PRESETS:
        reason = next(filter(None, (refusal(kind, preset, device) for kind in LayerKind)), "")
        if reason:
            off.append(f"{preset} ({reason.split(':')[0].split(';')[0]})")
        else:
            on.append(preset)
    return "presets", bool(on), f"on: {', '.join(on)}" + (f"; off: {', '.join(off)}" if off else "")
