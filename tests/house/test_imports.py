"""The core stands alone: importing and using it loads no engine and no adapter."""

from __future__ import annotations

import subprocess
import sys

ENGINES = (
    "transformers", "sglang", "tensorrt_llm", "flashinfer", "vllm", "fla", "mamba_ssm", "replayssm_transformers",
    "replayssm_trtllm",
)  # fmt: skip

SCRIPT = f"""
import pkgutil, sys
import replayssm
for module in pkgutil.walk_packages(replayssm.__path__, "replayssm."):
    if ".conformance" not in module.name:
        __import__(module.name)
loaded = sorted({{name.split(".")[0] for name in sys.modules}} & set({ENGINES!r}))
assert not loaded, f"the core loaded {{loaded}}"
"""


def test_core_imports_no_engine():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
