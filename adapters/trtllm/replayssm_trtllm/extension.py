"""What a registered model class adds to the engine's: its configuration read, its mixers rerouted, its forward bracketed."""

from __future__ import annotations

import functools
import importlib
from typing import Any, ClassVar

from replayssm import LayerKind, UnsupportedError
from replayssm_trtllm import mixer_gdn, mixer_mamba2
from replayssm_trtllm.compat import Engine
from replayssm_trtllm.kinds import MAMBA2
from replayssm_trtllm.router import Router
from replayssm_trtllm.runtime_checks import check_model
from replayssm_trtllm.settings import read_settings
from replayssm_trtllm.surface import GDN_MIXER, GDN_MODULE, MAMBA2_MIXER, MAMBA2_MODULE, find


class ReplaySSMModel:
    """Put before the engine's model class.

    Raises:
        UnsupportedError: no configuration reached this rank, or the model cannot be served.
    """

    replayssm_kind: ClassVar[LayerKind]
    replayssm_engine: ClassVar[Engine]

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  the engine's
        config = read_settings(model_config.pretrained_config)
        if config is None:
            raise UnsupportedError(
                "the ReplaySSM plugin is loaded and no configuration reached this rank; pass the YAML of "
                "`replayssm trtllm yaml` with --config (made with --nested text_config where the model's config.json has a "
                "text_config, as Qwen3.5's have), or leave --custom_module_dirs out"
            )
        tp = self.replayssm_engine.effective_tp(model_config.mapping)
        check_model(config, self.replayssm_kind, model_config, tp)
        super().__init__(model_config, *args, **kwargs)  # type: ignore[call-arg]
        self.replayssm_router = reroute(self, self.replayssm_kind, model_config.mapping.pp_size)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the engine's
        """See the engine's model."""
        attn_metadata = kwargs["attn_metadata"] if "attn_metadata" in kwargs else args[0]
        with self.replayssm_router.forward(attn_metadata):
            return super().forward(*args, **kwargs)  # type: ignore[misc]

    @classmethod
    def get_preferred_kv_cache_manager_version(cls, pretrained_config: Any = None) -> str:  # noqa: ANN401, ARG003
        """The manager that can be extended."""
        return "V2"


def reroute(model: Any, kind: LayerKind, pipeline: int = 1) -> Router:  # noqa: ANN401  the engine's module
    """Reroute all recurrent mixers of a model; a rank of a pipeline of several may have none.

    Raises:
        UnsupportedError: the model has none.
    """
    module, name = (MAMBA2_MODULE, MAMBA2_MIXER) if kind is MAMBA2 else (GDN_MODULE, GDN_MIXER)
    mixer_class = find(module, name)
    mixers = [part for part in model.modules() if isinstance(part, mixer_class)]
    if not mixers and pipeline == 1:
        raise UnsupportedError(f"{type(model).__name__} has no {name} layers; there is nothing to replay")
    if kind is MAMBA2:
        router = Router(kind, {int(m.layer_idx): functools.partial(mixer_mamba2.constant, m) for m in mixers})
        for mixer in mixers:
            mixer_mamba2.reroute(mixer, router)
        return router
    router = Router(kind, {int(m.layer_idx): _no_constant for m in mixers})
    mixer_gdn.replace_operator(importlib.import_module(GDN_MODULE))
    for mixer in mixers:
        mixer_gdn.reroute(mixer, router)
    return router


def _no_constant() -> None:
    """Gated DeltaNet has its decay in the gates."""
