"""Makes the libraries of requirements-apart.txt importable.

The package index has torchvision for CUDA alone. With torch's CPU build its operators do not load.
Without their names its import fails, and so does each library that looks for torchvision. The
environment therefore has these libraries in a folder of their own. The transforms use no operator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_NAMES = "nms qnms roi_align qroi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d"
_LIBRARY = torch.library.Library("torchvision", "DEF")


def make_importable() -> None:
    """Make torchvision, timm and streaming importable in this process."""
    sys.path.append(str(Path(sys.prefix) / "apart"))
    for name in _NAMES.split():
        _LIBRARY.define(f"{name}(Tensor x) -> Tensor")
        _LIBRARY.define(f"_{name}_backward(Tensor x) -> Tensor")
