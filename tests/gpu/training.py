"""A training run for `test_training`: ``python training.py MODEL FILE [STEP_TO_DIE_AT]``.

It prints the bits of each step's loss. With a step it kills itself there, after a checkpoint; with
a checkpoint in FILE it goes on from it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from picklable_loader import DataLoader  # noqa: E402


class Noise(Dataset[Any]):
    """Images, or sequences of 64 vectors; random, and so the test of every generator."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        return torch.rand(self.shape) + index % 10 / 10, index % 10


def augmented(batch: Any) -> Any:
    images, labels = batch
    return images + torch.rand_like(images) / 10, labels


def cnn() -> nn.Module:
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(16, 10))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 32, 10))


def main(kind: str, path: Path, dies_at: int) -> None:
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    name, _, compiled = kind.partition("+")
    model = {"cnn": cnn, "transformer": transformer}[name]().cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    shape = (3, 32, 32) if name == "cnn" else (64, 32)
    loader = DataLoader(
        Noise(shape), 8, True, num_workers=2, seed=5, to_device="cuda", device_convert=augmented
    )
    iterator = iter(loader)
    if path.exists():
        saved = torch.load(path, weights_only=False)
        iterator = saved["iterator"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        torch.cuda.set_rng_state(saved["cuda"])
    run: Any = torch.compile(model) if compiled else model
    for inputs, labels in iterator:
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(run(inputs), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(loss.item().hex(), flush=True)
        if iterator.step == dies_at:
            parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
            states = {key: part.state_dict() for key, part in parts.items()}
            states |= {"iterator": iterator, "cuda": torch.cuda.get_rng_state()}
            torch.save(states, path)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1)
