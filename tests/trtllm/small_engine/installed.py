"""Puts the small engine into `sys.modules` under TensorRT-LLM's names, as one of the four generations."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from replayssm_trtllm.surface import (
    COMMON,
    GDN_MODULE,
    MAMBA2_MODULE,
    MANAGERS,
    OLD_MANAGERS,
    REGISTRY,
    SELECTOR,
    SELECTOR_MODULE,
    TORCH,
    V2,
    V2_MODULE,
)
from small_engine import base, earlier, later, models, payloads

VARIANTS = ("A", "A-package", "B", "C", "C-early", "D")
SERVED = ("B", "C", "C-early", "D")


def install(monkeypatch, variant):
    """Install a variant; returns its modules by name."""
    modules = {}

    def add(name, *, package=False, **attributes):
        module = ModuleType(name)
        if package:
            module.__path__ = []
        vars(module).update(attributes)
        modules[name] = module
        return module

    def load(name, file):
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(file))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules[name] = module
        return module

    mamba2 = load(MAMBA2_MODULE, "mixer_mamba2.py")
    gdn = load(GDN_MODULE, "mixer_gdn.py")
    manager = managers(variant, add)
    add(SELECTOR_MODULE, **{SELECTOR: selector(variant, manager)})
    models.REGISTRY.clear()
    earlier.ESTIMATORS.clear()
    add(REGISTRY, register_auto_model=models.register_auto_model)
    for file, name, mixer in (
        ("modeling_nemotron_h", "NemotronHForCausalLM", mamba2.Mamba2Mixer),
        ("modeling_qwen3_next", "Qwen3NextForCausalLM", gdn.Qwen3NextGatedDeltaNet),
    ):
        add(f"{TORCH}.models.{file}", **{name: models.make_model_class(name, mixer)})
    qwen = {
        n: models.make_model_class(n, gdn.Qwen3NextGatedDeltaNet)
        for n in ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")
    }
    add(f"{TORCH}.models.modeling_qwen3_5", **qwen)
    for name in list(modules):
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            if parent not in modules:
                add(parent, package=True)
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in modules.items():
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "replayssm_trtllm.models", raising=False)
    return modules


def managers(variant, add):
    """The managers' modules of a variant; the class that a selector gives."""
    old = type("MambaHybridCacheManager", (base.KVCacheManagerV2,), {})
    if variant == "A":
        add(OLD_MANAGERS, MambaHybridCacheManager=old)
        return old
    if variant == "A-package":
        add(MANAGERS, MambaHybridCacheManager=old)
        return old
    add(MANAGERS, package=True)
    shared = {
        "ReplayStateUpdateMetadata": payloads.ReplayStateUpdateMetadata,
        "_mamba_effective_tp_size": effective_tp,
        "_get_local_mamba_cache_layout": base.local_layout,
    }
    if variant == "B":
        manager = earlier.MambaHybridCacheManagerV2
        add(
            COMMON,
            **shared,
            MambaStateUpdateStrategy=earlier.MambaStateUpdateStrategy,
            MambaCacheBuildContext=payloads.MambaCacheBuildContext,
            SpeculativeMambaLayerCache=earlier.SpeculativeMambaLayerCache,
            register_mamba_aux_cache_estimator=earlier.register_mamba_aux_cache_estimator,
        )
    else:
        manager = later.make_later("D" if variant == "D" else "C", keeps_state=variant != "C-early")
        names = ("MambaState", "MambaStateLayout", "MambaAcceptanceBatch", "IntermediateLayerCache")
        add(COMMON, **shared, **{name: getattr(payloads, name) for name in names})
    add(V2_MODULE, **{V2: manager})
    return manager


def effective_tp(mapping):
    return base.effective_tp(mapping)


def selector(variant, manager):
    """The engine's function took one, two or four arguments over time."""
    if variant in ("A", "A-package"):

        def get_kv_cache_manager_cls(model_config):
            del model_config
            return manager
    elif variant == "B":

        def get_kv_cache_manager_cls(model_config, kv_cache_config):
            del model_config, kv_cache_config
            return manager
    else:

        def get_kv_cache_manager_cls(model_config, kv_cache_config, is_disagg=False, cache_transceiver_config=None):
            del model_config, is_disagg, cache_transceiver_config
            return base.KVCacheManagerV2 if getattr(kv_cache_config, "plain", False) else manager

    return get_kv_cache_manager_cls
