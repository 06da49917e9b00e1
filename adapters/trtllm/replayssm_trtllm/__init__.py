"""ReplaySSM in TensorRT-LLM's PyTorch backend, as an LLM API configuration.

cfg = ReplaySSMConfig(window=16, decode=True, read_copy="nvfp4")
llm = LLM(model, **cfg.to_llm_kwargs())

Importing this package imports no TensorRT-LLM; `replayssm_trtllm.models` does.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replayssm_trtllm.config import ReplaySSMConfig

__all__ = ["ReplaySSMConfig"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `replayssm doctor` imports this package where pydantic may be missing.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from replayssm_trtllm import config

    return getattr(config, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
