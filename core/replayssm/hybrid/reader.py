"""From a `config.json` to a `HybridModel`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from replayssm.errors import InputError
from replayssm.hybrid.families import FAMILIES, Family, size
from replayssm.hybrid.fields import Fields, short
from replayssm.hybrid.layers import ATTENTION, BOTH, RECURRENT, layer_names
from replayssm.hybrid.model import HybridModel
from replayssm.recurrence import Recurrence

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

# Far above any model; a ring of as many records as there are still has a size that int64 holds.
_MAX_STATE = 2**40


def read_hybrid(path: str | Path) -> HybridModel:
    """Read a model's `config.json`, or that of a model directory.

    Raises:
        InputError: no such file, not JSON, not a hybrid model that is known, or a field that is missing or out of range.
    """
    if not str(path) or "\0" in str(path):
        raise InputError(f"path={str(path)!r} is not a path; expected a model's config.json, or its directory")
    path = Path(path)
    try:
        path = path / "config.json" if path.is_dir() else path
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply to be read") from None
    return parse_hybrid(values, str(path))


def parse_hybrid(values: object, source: str = "config.json") -> HybridModel:
    """The same from a config's fields; `source` is what errors call it.

    Raises:
        InputError: as `read_hybrid`.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{source}: holds {type(values).__name__}; expected a JSON object")
    text, name = _text_part(values, source)
    family = FAMILIES[name]
    names = layer_names(text, family.otherwise)
    recurrent = sum(layer in RECURRENT | BOTH for layer in names)
    attention = sum(layer in ATTENTION | BOTH for layer in names)
    if not recurrent:
        found = ", ".join(f"{count} {layer}" for layer, count in Counter(names).items()) or "none"
        allowed = ", ".join(sorted(RECURRENT | BOTH))
        raise InputError(f"{source}: no recurrent layer; found {found}; expected at least one of {allowed}")
    kv_heads, kv_elements = family.kv(text) if attention else (0, 0)
    return HybridModel(
        source=source,
        model_type=name,
        recurrence=_recurrence(text, family),
        recurrent_layers=recurrent,
        attention_layers=attention,
        layers=len(names),
        conv_kernel=size(text, family.kernel),
        kv_heads=kv_heads,
        kv_elements=kv_elements,
        activation=_activation(text, Fields(source, values)),
    )


def _text_part(values: Mapping[str, Any], source: str) -> tuple[Fields, str]:
    """The language model's fields, and the model type whose line describes them."""
    inner = values.get("text_config")
    nested = isinstance(inner, Mapping)
    text = Fields(source, inner, "text_config.") if isinstance(inner, Mapping) else Fields(source, values)
    types = [text.find("model_type")] + ([values.get("model_type")] if nested else [])
    for name in types:
        if isinstance(name, str) and name in FAMILIES:
            return text, name
    given = next((name for name in types if name is not None), None)
    raise text.error(
        "model_type", f"is {short(given)}, not a hybrid model that is known; known are {', '.join(FAMILIES)}"
    )


def _recurrence(fields: Fields, family: Family) -> Recurrence:
    sizes = [size(fields, field) for field in (family.heads, family.groups, family.value_dim, family.key_dim)]
    try:
        recurrence = Recurrence(family.kind, *sizes)
    except InputError as error:
        raise InputError(f"{fields.source}: {error}") from None
    size_bytes = 4 * math.prod(recurrence.state_shape)
    if size_bytes > _MAX_STATE:
        raise InputError(
            f"{fields.source}: the state of a layer takes {size_bytes} bytes; expected at most {_MAX_STATE}"
        )
    return recurrence


def _activation(text: Fields, whole: Fields) -> torch.dtype:
    for fields in (text, whole):
        name = fields.find("dtype|torch_dtype")
        if name is None or name == "auto":
            continue
        if not isinstance(name, str) or name not in _DTYPES:
            raise fields.error("dtype|torch_dtype", f"is {short(name)}; expected one of {', '.join(_DTYPES)}")
        return _DTYPES[name]
    # Configs written by hand or by recent releases may leave it out; engines then serve in bfloat16.
    return torch.bfloat16
