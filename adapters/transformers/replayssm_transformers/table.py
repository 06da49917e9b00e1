"""Which Hugging Face models are served: one line per family. Adding a family is a line here and a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replayssm import LayerKind, Recurrence

if TYPE_CHECKING:
    from torch import nn

GDN, MAMBA2, KDA = LayerKind.GDN, LayerKind.MAMBA2, LayerKind.KDA


@dataclass(frozen=True)
class Family:
    """One modelling module of transformers.

    Attributes:
        name: how people call the family.
        kind: the recurrence of its state-space layers.
        package: `transformers.models.<package>`, which holds `modeling_<package>`.
        mixer: class of the state-space layer; every model class that is built from it is served.
        model: the class with a language-model head that the tests run.
    """

    name: str
    kind: LayerKind
    package: str
    mixer: str
    model: str

    @property
    def module(self) -> str:
        """Import path of the modelling module."""
        return f"transformers.models.{self.package}.modeling_{self.package}"


FAMILIES: tuple[Family, ...] = (
    Family("Qwen3-Next", GDN, "qwen3_next", "Qwen3NextGatedDeltaNet", "Qwen3NextForCausalLM"),
    Family("Qwen3.5", GDN, "qwen3_5", "Qwen3_5GatedDeltaNet", "Qwen3_5ForCausalLM"),
    Family("Qwen3.5 MoE", GDN, "qwen3_5_moe", "Qwen3_5MoeGatedDeltaNet", "Qwen3_5MoeForCausalLM"),
    Family("OLMo-Hybrid", GDN, "olmo_hybrid", "OlmoHybridGatedDeltaNet", "OlmoHybridForCausalLM"),
    Family("Nemotron-H", MAMBA2, "nemotron_h", "NemotronHMamba2Mixer", "NemotronHForCausalLM"),
    Family("Mamba2", MAMBA2, "mamba2", "Mamba2Mixer", "Mamba2ForCausalLM"),
    Family("Bamba", MAMBA2, "bamba", "BambaMixer", "BambaForCausalLM"),
    Family("Falcon-H1", MAMBA2, "falcon_h1", "FalconH1Mixer", "FalconH1ForCausalLM"),
    Family("Granite-4 hybrid", MAMBA2, "granitemoehybrid", "GraniteMoeHybridMambaLayer", "GraniteMoeHybridForCausalLM"),
    Family("Zamba2", MAMBA2, "zamba2", "Zamba2MambaMixer", "Zamba2ForCausalLM"),
    Family("Kimi-Linear", KDA, "kimi_linear", "KimiLinearDeltaAttention", "KimiLinearForCausalLM"),
    Family("GLM-5-Next", KDA, "glm5_next", "Glm5NextTextLinearAttention", "Glm5NextForConditionalGeneration"),
)
"""Every family that is served."""


def family_of(module: nn.Module) -> Family | None:
    """The family whose state-space layer this module is, None for any other module."""
    cls = type(module)
    for family in FAMILIES:
        if (cls.__module__, cls.__name__) == (family.module, family.mixer):
            return family
    return None


def mixers_of(model: nn.Module) -> dict[nn.Module, Family]:
    """All state-space layers of a model that are served, with their families."""
    found = ((module, family_of(module)) for module in model.modules())
    return {module: family for module, family in found if family is not None}


def geometry(kind: LayerKind, mixer: Any) -> Recurrence:  # noqa: ANN401  transformers is untyped
    """Heads and dimensions of a state-space layer, from its own attributes."""
    if kind is MAMBA2:
        return Recurrence.mamba2(
            heads=mixer.num_heads, head_dim=mixer.head_dim, state_size=mixer.ssm_state_size, groups=mixer.n_groups
        )
    if kind is GDN:
        return Recurrence.gdn(
            value_heads=mixer.num_v_heads,
            key_heads=mixer.num_k_heads,
            value_dim=mixer.head_v_dim,
            key_dim=mixer.head_k_dim,
        )
    return Recurrence.kda(heads=mixer.num_heads, value_dim=mixer.head_dim, key_dim=mixer.head_dim)
