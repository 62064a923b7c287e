"""A training on a dataset of LitData or of MosaicML streaming, by the recipes of their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from picklable_loader import DataLoader

from . import data
from .apart import make_importable
from .harness import Run

make_importable()  # streaming imports torchvision

import litdata  # noqa: E402
import streaming  # noqa: E402
from test_docs import ROOT, blocks  # noqa: E402

_RECIPE: dict[str, Any] = {}
for _, block in blocks(ROOT / "docs" / "frameworks" / "mosaic.md", "```python needs data"):
    exec(block.partition("\ndataset = ")[0], _RECIPE)  # the wrapper; the rest opens "data"


def _number(index: int) -> dict[str, int]:
    return {"id": index}


def _litdata(folder: Path) -> Any:
    if not folder.exists():
        litdata.optimize(
            fn=_number,
            inputs=list(range(data.SIZE)),
            output_dir=str(folder),
            num_workers=1,
            chunk_size=4,
            verbose=False,
        )
    return litdata.StreamingDataset(str(folder), shuffle=True, seed=3)


def _mosaic(folder: Path) -> Any:
    if not folder.exists():
        with streaming.MDSWriter(out=str(folder), columns={"id": "int"}, size_limit=200) as writer:
            for index in range(data.SIZE):
                writer.write(_number(index))
    dataset = streaming.StreamingDataset(
        local=str(folder), shuffle=True, shuffle_seed=3, batch_size=data.BATCH_SIZE
    )
    return _RECIPE["Mosaic"](dataset)


_MAKERS = {"litdata": _litdata, "mosaic": _mosaic}


def _with_noise(samples: list[dict[str, int]]) -> Any:
    return default_collate([data.sample(int(sample["id"])) for sample in samples])


def train(run: Run, library: str, workers: int) -> None:
    made = DataLoader(
        _MAKERS[library](run.folder / "data"),
        batch_size=data.BATCH_SIZE,
        collate_fn=_with_noise,
        num_workers=workers,
        seed=1,
    )
    net = data.model(dropout=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    saved = run.folder / "saved.pt"
    if run.resumes:
        state = torch.load(saved, weights_only=True)
        made.load_state_dict(state["loader"])
        net.load_state_dict(state["net"])
    for epoch in range(made.epoch, data.EPOCHS):
        made.set_epoch(epoch)
        for batch in made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            loss.backward()
            optimizer.step()
            run.note(batch, loss)
            if run.steps == run.checkpoint:
                torch.save({"net": net.state_dict(), "loader": made.state_dict()}, saved)
