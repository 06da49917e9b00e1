"""Which layers a model has, from the several ways in which configs say so."""

from __future__ import annotations

from replayssm.hybrid.fields import Fields, short

RECURRENT = frozenset({"linear_attention", "mamba", "mamba2", "kda"})
ATTENTION = frozenset(
    {
        "full_attention",
        "attention",
        "sliding_attention",
        "indexed_attention",
        "deepseek_sparse_attention",
    }
)
BOTH = frozenset({"hybrid"})
NEITHER = frozenset({"mlp", "moe"})

_LISTED = "layer_types|layers_block_type"
_PATTERN = "hybrid_override_pattern"
_KDA, _FULL = "linear_attn_config.kda_layers", "linear_attn_config.full_attn_layers"
_INTERVAL = "full_attention_interval"
_INDICES = "attn_layer_indices"
_COUNT = "num_hidden_layers"
# Every layer gets a name in memory.
_MAX_LAYERS = 2**16
_PATTERN_NAMES = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def layer_names(fields: Fields, otherwise: str | None) -> list[str]:
    """One name a layer. The order is the config's, but for lists of recurrent and attention layers, which come in turn.

    Args:
        otherwise: the name of every layer where the config says nothing; None where it must.

    Raises:
        InputError: nothing says which layers are recurrent, a name is unknown, or the number of layers is another one.
    """
    for names, read in _WAYS.items():
        if fields.find(names) is not None:
            return _counted(fields, names, read(fields))
    if otherwise is None:
        raise fields.error("|".join(_WAYS), "is missing: nothing says which layers are recurrent")
    return [otherwise] * _layers(fields)


def _layers(fields: Fields) -> int:
    return fields.integer(_COUNT, high=_MAX_LAYERS)


def _counted(fields: Fields, names: str, layers: list[str]) -> list[str]:
    if fields.find(_COUNT) is not None and len(layers) != _layers(fields):
        raise fields.error(names, f"describes {len(layers)} layers; expected {_COUNT} = {_layers(fields)}")
    return layers


def _listed(fields: Fields) -> list[str]:
    names = fields.strings(_LISTED)
    known = RECURRENT | ATTENTION | BOTH | NEITHER
    for name in names:
        if name not in known:
            raise fields.error(_LISTED, f"holds {short(name)}; expected one of {', '.join(sorted(known))}")
    return names


def _pattern(fields: Fields) -> list[str]:
    pattern = fields.find(_PATTERN)
    if not isinstance(pattern, str) or not set(pattern) <= set(_PATTERN_NAMES):
        raise fields.error(
            _PATTERN, f"is {short(pattern)}; expected a string of M (Mamba), * (attention), E (MoE) and - (MLP)"
        )
    return [_PATTERN_NAMES[letter] for letter in pattern]


def _two_lists(fields: Fields) -> list[str]:
    recurrent, attention = fields.integers(_KDA), fields.integers(_FULL)
    for index in sorted(set(recurrent) & set(attention)):
        raise fields.error(_FULL, f"holds {short(index)}, which {_KDA} holds, too; expected each layer in one of them")
    return ["kda"] * len(recurrent) + ["attention"] * len(attention)


def _interval(fields: Fields) -> list[str]:
    interval, layers = fields.integer(_INTERVAL), _layers(fields)
    return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]


def _indices(fields: Fields) -> list[str]:
    attention, layers = set(fields.integers(_INDICES)), _layers(fields)
    for index in sorted(attention - set(range(layers))):
        raise fields.error(_INDICES, f"holds {short(index)}; expected indices from 0 to {layers - 1}")
    return ["attention" if i in attention else "mamba" for i in range(layers)]


_WAYS = {_LISTED: _listed, _PATTERN: _pattern, _KDA: _two_lists, _INTERVAL: _interval, _INDICES: _indices}
