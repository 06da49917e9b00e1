"""Before the test platform's own: Qwen3.5's gated norm asks CUDA for multiprocessors, whatever the device."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import torch

runpy.run_path(str(Path(__file__).parents[1] / "cpu_platform" / "site" / "sitecustomize.py"))
if not torch.cuda.is_available():
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)
