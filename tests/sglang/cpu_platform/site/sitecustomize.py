"""Lets the torchvision of the package index, built for CUDA, import beside a CPU build of torch.

Its library cannot be loaded, so the operators that its Python part describes are declared here.
"""

import torch

for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
