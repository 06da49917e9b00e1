"""ReplaySSM in Hugging Face transformers: the embedded engine.

model = AutoModelForCausalLM.from_pretrained(path)
session = replayssm_transformers.enable(model, ReplayConfig(window=16, preset="dual-nvfp4"))
model.generate(...)
replayssm_transformers.disable(model)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replayssm_transformers.session import Session, disable, enable, session_of

__all__ = ["Session", "disable", "enable", "session_of"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `replayssm doctor` imports this package where transformers may be missing or broken.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from replayssm_transformers import session

    return getattr(session, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
