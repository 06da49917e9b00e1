"""Importing this module registers the extended model classes and wraps the manager's selector: the plugin itself.

It is what `--custom_module_dirs $(replayssm trtllm path)` imports, and what every rank imports when it looks up one of the
registered architectures.

Raises:
    UnsupportedError: the installed TensorRT-LLM is not as this adapter knows it; nothing was registered.
"""

from __future__ import annotations

from types import new_class
from typing import Any

from replayssm_trtllm import selector
from replayssm_trtllm.architectures import ARCHITECTURES, Architecture
from replayssm_trtllm.compat import Engine, probe
from replayssm_trtllm.extension import ReplaySSMModel
from replayssm_trtllm.sizing import register_estimate
from replayssm_trtllm.surface import REGISTRY, find


def extend(entry: Architecture, engine: Engine) -> type:
    """The engine's model class with replay."""
    base: Any = find(entry.module, entry.cls)
    attributes = {"replayssm_kind": entry.kind, "replayssm_engine": engine, "__module__": __name__}
    return new_class(f"ReplaySSM{entry.cls}", (ReplaySSMModel, base), exec_body=lambda body: body.update(attributes))


def register() -> dict[str, type]:
    """Extend and register every architecture: name → class."""
    engine = probe()
    selector.install(engine)
    register_estimate(engine, selector.kind_of_model)
    registered = {}
    for entry in ARCHITECTURES:
        registered[entry.name] = find(REGISTRY, "register_auto_model")(entry.name)(extend(entry, engine))
    return registered


REGISTERED = register()
# A class is looked up by its module and name wherever it is pickled.
globals().update({cls.__name__: cls for cls in REGISTERED.values()})
