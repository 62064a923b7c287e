"""Handwritten digits, augmented at random inside the dataset."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset

from .plan import TRAINED_ON


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    """Images that look a bit different each time that they are asked for.

    Each of the three global random number generators has a part in it, as in real projects, where
    a transform draws from whichever its author liked.

    Args:
        images: floats from 0 to 1, shape ``(length, 8, 8)``.
        labels: ints from 0 to 9, shape ``(length,)``.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        """The image, shape ``(1, 8, 8)``, its label, and its index: which samples were seen."""
        image = rotated(self.images[index])
        image = shifted(image)
        image = image + torch.from_numpy(np.random.normal(0.0, 0.05, image.shape)).float()
        return image[None], int(self.labels[index]), index


def rotated(image: torch.Tensor, most_degrees: float = 15.0) -> torch.Tensor:
    """The image turned by an angle that torch draws."""
    angle = math.radians(float(torch.empty(()).uniform_(-most_degrees, most_degrees)))
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = functional.affine_grid(turn, [1, 1, *image.shape], align_corners=False)
    return functional.grid_sample(image[None, None], grid, align_corners=False)[0, 0]


def shifted(image: torch.Tensor, most: int = 1) -> torch.Tensor:
    """The image moved by whole pixels that Python draws; what leaves one edge enters at the other.

    The digits have a blank margin, so that little does.
    """
    down, right = random.randint(-most, most), random.randint(-most, most)
    return torch.roll(image, (down, right), (0, 1))


def load(path: Path) -> tuple[Digits, torch.Tensor, torch.Tensor]:
    """Read the file of digits that the demo has laid ready.

    Args:
        path: a saved dict of ``images``, shape ``(1797, 8, 8)``, and ``labels``.

    Returns:
        The dataset to train on, and the images, shape ``(261, 1, 8, 8)``, and labels to test on.
    """
    saved = torch.load(path)
    images, labels = saved["images"], saved["labels"]
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = mixed[:TRAINED_ON], mixed[TRAINED_ON:]
    return Digits(images[train], labels[train]), images[test][:, None], labels[test]
