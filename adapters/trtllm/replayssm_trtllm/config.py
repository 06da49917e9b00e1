"""`ReplaySSMConfig`: what a user of TensorRT-LLM's LLM API types. Imports no TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, model_validator

from replayssm import InputError, PrecisionPolicy
from replayssm.capability import CAPABILITIES
from replayssm.layout import MAX_DRAFT, MAX_WINDOW
from replayssm_trtllm.nearest import unknown

CHECKPOINTS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""TensorRT-LLM's names of a state's dtype → the core's."""

NATIVE_WINDOW = 16
"""Least history of TensorRT-LLM's own replay, which keeps max(16, T) tokens."""

PLUGIN, NATIVE = "plugin", "native"


class ReplaySSMConfig(BaseModel):
    """ReplaySSM in TensorRT-LLM.

    *native* sets what TensorRT-LLM has: replay of draft chains, one state, a window of max(16, T). *plugin* registers
    this adapter's cache-manager extension in every rank: ordinary decode, any window, a read copy. "auto" is native
    when TensorRT-LLM can do everything that is asked for, else plugin.

    Raises:
        ValidationError: an unknown field (the nearest valid one is named), a bad value, or fields that contradict.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="ReplaySSMConfig")

    mode: Literal["auto", "native", "plugin"] = Field("auto", description="Who does the replay.")
    window: Annotated[StrictInt, Field(ge=1, le=MAX_WINDOW)] | Literal["auto"] = Field(
        "auto", description="Records between two state writes. auto: max(16, T) native, max(16, 2 T) plugin."
    )
    decode: StrictBool = Field(False, description="Replay ordinary decode, without speculation, too (plugin).")
    read_copy: Literal["none", "fp8", "nvfp4"] = Field(
        "none", description="Low-precision copy that steps without a state write read (plugin)."
    )
    checkpoint_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Dtype of the state that is written; auto leaves it to TensorRT-LLM."
    )
    stochastic_rounding: StrictBool = Field(False, description="Round float16 states stochastically.")
    philox_rounds: Annotated[StrictInt, Field(ge=1)] = Field(10, description="Rounds of the generator (native).")
    seed: Annotated[StrictInt, Field(ge=0, lt=2**62)] = Field(0, description="Of stochastic rounding (plugin).")
    backend: Literal["auto", "torch", "triton"] = Field(
        "auto", description="Operators of the plugin. auto: triton, always."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, values: Any) -> Any:  # noqa: ANN401  whatever a user passes
        if isinstance(values, Mapping):
            for name in values:
                if name not in cls.model_fields:
                    raise ValueError(unknown(str(name), cls.model_fields, cls.__name__))
        return values

    @model_validator(mode="after")
    def _contradictions(self) -> Self:
        if self.stochastic_rounding and self.checkpoint_dtype != "float16":
            raise ValueError(
                f"stochastic_rounding needs checkpoint_dtype='float16', got {self.checkpoint_dtype!r}; TensorRT-LLM "
                "rounds no other dtype stochastically"
            )
        if self.mode == NATIVE and self.plugin_only:
            raise ValueError(
                f"mode='native' cannot do {', '.join(self.plugin_only)}: TensorRT-LLM replays draft chains only, with one "
                "state and a fixed window; use mode='plugin'"
            )
        if self.resolved_mode == PLUGIN and self.philox_rounds != 10:
            raise ValueError(f"philox_rounds={self.philox_rounds} is native's; the plugin's generator has 10 rounds")
        if self.philox_rounds != 10 and not self.stochastic_rounding:
            raise ValueError(
                f"philox_rounds={self.philox_rounds} needs stochastic_rounding=True; nothing else is random"
            )
        return self

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ReplaySSMConfig:
        """From plain data.

        Raises:
            InputError: no mapping, or what a constructor would refuse, in one line.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"ReplaySSMConfig is made from a mapping of its fields, got {type(values).__name__}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise InputError(f"ReplaySSMConfig: {_one_line(error)}") from None

    @classmethod
    def from_ranks(cls, values: Any, where: str) -> ReplaySSMConfig:  # noqa: ANN401  whatever a user put there
        """What `model_kwargs` or the environment carries to the ranks: the plugin's, whether or not it says so.

        Raises:
            InputError: no mapping, native mode, or what `from_mapping` refuses.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"{where} is a {type(values).__name__}; expected a mapping of ReplaySSMConfig's fields")
        if values.get("mode") == NATIVE:
            raise InputError(f"{where} carries the plugin's configuration and has mode='native'; leave one of them out")
        return cls.from_mapping({**values, "mode": PLUGIN})

    @property
    def plugin_only(self) -> list[str]:
        """Fields in force that TensorRT-LLM's own replay has no equal of."""
        asked = {
            "decode": self.decode,
            f"read_copy={self.read_copy!r}": self.read_copy != "none",
            f"window={self.window}": self.window not in ("auto", NATIVE_WINDOW),
            f"backend={self.backend!r}": self.backend != "auto",
            f"seed={self.seed}": self.seed != 0,
        }
        return [name for name, yes in asked.items() if yes]

    @property
    def resolved_mode(self) -> str:
        """`native` or `plugin`."""
        if self.mode != "auto":
            return self.mode
        return PLUGIN if self.plugin_only else NATIVE

    def resolved_window(self, tokens: int) -> int:
        """W for T = `tokens`.

        Raises:
            InputError: T above what a ring takes, a window below T, or natively another one than max(16, T).
        """
        if tokens > MAX_DRAFT:
            raise InputError(f"{tokens} tokens a step are more than the {MAX_DRAFT} that a ring takes; draft less")
        native = max(NATIVE_WINDOW, tokens)
        if self.window == "auto":
            return native if self.resolved_mode == NATIVE else max(NATIVE_WINDOW, 2 * tokens)
        if self.window < tokens:
            raise InputError(
                f"window={self.window} is below the {tokens} tokens of a step; set at least {tokens}, better {2 * tokens}"
            )
        if self.resolved_mode == NATIVE and self.window != native:
            raise InputError(
                f"window={self.window}: TensorRT-LLM's own replay keeps max(16, T) = {native}; use mode='plugin'"
            )
        return self.window

    def precision(self, state_dtype: str) -> PrecisionPolicy:
        """The core's policy for a state of TensorRT-LLM's dtype ("float32", "bfloat16", "float16").

        Raises:
            InputError: a dtype that no checkpoint has, or another one than this configuration asks for.
        """
        if state_dtype not in CHECKPOINTS:
            raise InputError(f"the recurrent state is {state_dtype}; expected one of {', '.join(CHECKPOINTS)}")
        if self.checkpoint_dtype not in ("auto", state_dtype):
            raise InputError(
                f"checkpoint_dtype={self.checkpoint_dtype!r}, and the recurrent state is {state_dtype}; set "
                f"kv_cache_config.mamba_ssm_cache_dtype: {self.checkpoint_dtype}"
            )
        copy = None if self.read_copy == "none" else self.read_copy
        return PrecisionPolicy(CHECKPOINTS[state_dtype], self.stochastic_rounding, copy)

    @property
    def resolved_backend(self) -> str:
        """The core's backend: "auto" is triton, which alone of the adapter's can be captured in a CUDA graph.

        What it does not serve (a K, say) is refused in the rank, with the reason, rather than run by another.
        """
        return "triton" if self.backend == "auto" else self.backend

    @property
    def graphs(self) -> bool:
        """Whether a step can be captured in a CUDA graph."""
        return self.resolved_mode == NATIVE or CAPABILITIES[self.resolved_backend].graph_capture

    def to_llm_kwargs(
        self,
        speculative: Mapping[str, Any] | None = None,
        llm: Mapping[str, Any] | None = None,
        *,
        sm: int | None = None,
        nested: str | None = None,
    ) -> dict[str, Any]:
        """Arguments for `tensorrt_llm.LLM`. In plugin mode registers the plugin where TensorRT-LLM is installed.

        Args:
            speculative: the `speculative_config`, e.g. `{"decoding_type": "MTP", "max_draft_len": 3}`.
            llm: other LLM arguments, checked against this configuration and merged into the result.
            sm: compute capability as one number (90, 100); that of the GPU that is visible when None.
            nested: name of a nested model configuration that holds the text model (`text_config`).

        Raises:
            InputError, UnsupportedError: what cannot be served, with the reason and an alternative.
        """
        from replayssm_trtllm.arguments import llm_arguments
        from replayssm_trtllm.register import register_if_installed

        arguments = llm_arguments(self, speculative, llm, sm=sm, nested=nested)
        if self.resolved_mode == PLUGIN:
            register_if_installed()
        return arguments

    def to_env(self, speculative: Mapping[str, Any] | None = None, *, sm: int | None = None) -> dict[str, str]:
        """Environment variables, for engines that are started by a shell. Arguments as those of `to_llm_kwargs`.

        Raises:
            InputError, UnsupportedError: what `to_llm_kwargs` refuses, and what no variable carries.
        """
        from replayssm_trtllm.arguments import environment

        return environment(self, speculative, sm=sm)

    def to_yaml(
        self,
        speculative: Mapping[str, Any] | None = None,
        llm: Mapping[str, Any] | None = None,
        *,
        sm: int | None = None,
        nested: str | None = None,
    ) -> str:
        """The YAML that `trtllm-serve --config` takes; arguments and errors as those of `to_llm_kwargs`."""
        from replayssm_trtllm.yaml_text import write

        return write(self, speculative, llm, sm=sm, nested=nested)

    @classmethod
    def from_yaml(cls, source: str | Path, *, sm: int | None = None) -> ReplaySSMConfig:
        """The configuration in a `--config` YAML, under the rules of `to_llm_kwargs`.

        Args:
            source: a path, or the text.
            sm: see `to_llm_kwargs`.

        Raises:
            InputError: not YAML, a misspelt field (the nearest valid one is named), or no ReplaySSM in it.
            UnsupportedError: other fields of it cannot be served.
        """
        from replayssm_trtllm.yaml_text import read

        return read(source, sm=sm)


def _one_line(error: ValidationError) -> str:
    """One part a field: where a field has alternatives, each of them has an error of its own."""
    parts: dict[str, list[str]] = {}
    for item in error.errors():
        name = str(item["loc"][0]) if item["loc"] else ""
        where = f"{name}={item['input']!r}: " if name else ""
        parts.setdefault(where, []).append(item["msg"].removeprefix("Value error, "))
    return "; ".join(where + ", or ".join(dict.fromkeys(texts)) for where, texts in parts.items())
