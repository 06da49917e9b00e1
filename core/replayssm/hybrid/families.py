"""The table of hybrid models: a model type, one line. Field names are those of the published configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from replayssm.hybrid.fields import Fields
from replayssm.recurrence import LayerKind

Size = str | Callable[[Fields], int]
KeyValue = Callable[[Fields], tuple[int, int]]


@dataclass(frozen=True)
class Family:
    """Where a config says what the recurrent layers are like.

    Attributes:
        kind: layer kind.
        heads, groups, value_dim, key_dim, kernel: a field's names, or a rule where the config leaves it to be derived.
        kv: `(heads, elements per head)` that an attention layer caches for each token.
        otherwise: name of every layer where the config lists none.
    """

    kind: LayerKind
    heads: Size
    groups: Size
    value_dim: Size
    key_dim: Size
    kernel: str
    kv: KeyValue
    otherwise: str | None = None


def size(fields: Fields, field: Size) -> int:
    """The value of a family's field."""
    return fields.integer(field) if isinstance(field, str) else field(fields)


def _grouped(fields: Fields) -> tuple[int, int]:
    heads = fields.integer("num_key_value_heads|num_attention_heads")
    if fields.find("head_dim|attention_head_dim") is not None:
        return heads, 2 * fields.integer("head_dim|attention_head_dim")
    return heads, 2 * _head_dim(fields, fields.integer("hidden_size"))


def _head_dim(fields: Fields, width: int) -> int:
    heads = fields.integer("num_attention_heads")
    if width < heads:
        raise fields.error("hidden_size", f"leaves {heads} attention heads no elements; expected at least one each")
    return width // heads


def _latent(fields: Fields) -> tuple[int, int]:
    # MLA caches one latent a token, shared by all heads (the keys of a sparse-attention indexer are not counted).
    return 1, fields.integer("kv_lora_rank") + fields.integer("qk_rope_head_dim", low=0)


def _zamba2_attention(fields: Fields) -> tuple[int, int]:
    # The shared block sees the hidden state beside the embedding, so its heads are twice as wide.
    heads = fields.integer("num_key_value_heads|num_attention_heads")
    return heads, 2 * _head_dim(fields, 2 * fields.integer("hidden_size"))


def _olmo_key_dim(fields: Fields) -> int:
    if fields.find("linear_key_head_dim") is not None:
        return fields.integer("linear_key_head_dim")
    heads = fields.integer("linear_num_key_heads|num_attention_heads")
    return 3 * fields.integer("hidden_size") // (4 * heads)


def _olmo_value_dim(fields: Fields) -> int:
    given = fields.find("linear_value_head_dim") is not None
    return fields.integer("linear_value_head_dim") if given else 2 * _olmo_key_dim(fields)


def _mamba_head_dim(fields: Fields) -> int:
    if fields.find("mamba_d_head") not in (None, "auto"):
        return fields.integer("mamba_d_head")
    if fields.find("mamba_d_ssm") is not None:
        return fields.integer("mamba_d_ssm") // fields.integer("mamba_n_heads")
    return fields.integer("mamba_expand") * fields.integer("hidden_size") // fields.integer("mamba_n_heads")


def _zamba2_head_dim(fields: Fields) -> int:
    return fields.integer("mamba_expand") * fields.integer("hidden_size") // fields.integer("n_mamba_heads")


_QWEN = Family(
    LayerKind.GDN,
    heads="linear_num_value_heads",
    groups="linear_num_key_heads",
    value_dim="linear_value_head_dim",
    key_dim="linear_key_head_dim",
    kernel="linear_conv_kernel_dim",
    kv=_grouped,
)
_OLMO = replace(
    _QWEN,
    heads="linear_num_value_heads|num_attention_heads",
    groups="linear_num_key_heads|num_attention_heads",
    value_dim=_olmo_value_dim,
    key_dim=_olmo_key_dim,
)
_BAMBA = Family(
    LayerKind.MAMBA2, "mamba_n_heads", "mamba_n_groups", _mamba_head_dim, "mamba_d_state", "mamba_d_conv", _grouped
)
_NEMOTRON = Family(
    LayerKind.MAMBA2,
    heads="mamba_num_heads",
    groups="mamba_n_groups|n_groups",
    value_dim="mamba_head_dim",
    key_dim="ssm_state_size",
    kernel="mamba_d_conv|conv_kernel",
    kv=_grouped,
)
_MAMBA2 = Family(LayerKind.MAMBA2, "num_heads", "n_groups", "head_dim", "state_size", "conv_kernel", _grouped, "mamba")
_ZAMBA2 = Family(
    LayerKind.MAMBA2,
    heads="n_mamba_heads",
    groups="mamba_ngroups",
    value_dim=_zamba2_head_dim,
    key_dim="mamba_d_state",
    kernel="mamba_d_conv",
    kv=_zamba2_attention,
)
_KIMI_HEADS, _KIMI_DIM = "linear_attn_config.num_heads|linear_num_heads", "linear_attn_config.head_dim|linear_head_dim"
_KIMI = Family(
    LayerKind.KDA,
    heads=_KIMI_HEADS,
    groups=_KIMI_HEADS,
    value_dim=_KIMI_DIM,
    key_dim=_KIMI_DIM,
    kernel="linear_attn_config.short_conv_kernel_size|linear_conv_kernel_dim",
    kv=_latent,
)

FAMILIES: dict[str, Family] = {
    "bamba": replace(_BAMBA, otherwise="mamba"),
    "falcon_h1": replace(_BAMBA, otherwise="hybrid"),
    "glm5_next": _KIMI,
    "glm5_next_text": _KIMI,
    "granitemoehybrid": _BAMBA,
    "kimi_k25": _KIMI,
    "kimi_k3": _KIMI,
    "kimi_linear": _KIMI,
    "mamba2": _MAMBA2,
    "nemotron_h": _NEMOTRON,
    "olmo_hybrid": _OLMO,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen3_5_moe_text": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_next": _QWEN,
    "zamba2": _ZAMBA2,
}
"""`model_type` → where its config keeps the recurrent layers' geometry."""
