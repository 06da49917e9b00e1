"""Registration of the plugin in the process that makes an `LLM`."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

ENGINE = "tensorrt_llm"


def register_if_installed() -> bool:
    """Import `replayssm_trtllm.models`, which registers the models, where TensorRT-LLM is installed; whether it is.

    Raises:
        UnsupportedError: TensorRT-LLM is installed and not as this adapter knows it.
    """
    if find_spec(ENGINE) is None:
        return False
    importlib.import_module("replayssm_trtllm.models")
    return True
