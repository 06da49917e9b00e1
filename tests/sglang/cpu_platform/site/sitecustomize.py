"""What SGLang and its packages ask of a GPU that is not there.

The torchvision of the package index, built for CUDA, imports beside a CPU build of torch: its library cannot be loaded, so
the operators that its Python part describes are declared here. Qwen3.5's gated norm asks for multiprocessors on any device.
"""

from types import SimpleNamespace

import torch

for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
if not torch.cuda.is_available():
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)
