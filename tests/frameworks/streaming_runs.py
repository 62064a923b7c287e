"""A training on a dataset of LitData or of MosaicML streaming, by the recipes of their pages."""

from __future__ import annotations

import re
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


def _of_page(library: str, name: str) -> Any:
    """A class of the page's block, the rest of which opens "data"."""
    recipe: dict[str, Any] = {}
    ((_, block),) = blocks(ROOT / "docs" / "frameworks" / f"{library}.md", "```python needs data")
    exec(re.split("\n(?=dataset =|loader =)", block)[0], recipe)
    return recipe[name]


def _number(index: int) -> dict[str, int]:
    return {"id": index}


def _litdata(folder: Path, kind: Any = litdata.StreamingDataset) -> Any:
    if not folder.exists():
        litdata.optimize(
            fn=_number,
            inputs=list(range(data.SIZE)),
            output_dir=str(folder),
            num_workers=1,
            chunk_size=4,
            verbose=False,
        )
    return kind(str(folder), shuffle=True, seed=3)


def _litdata_counted(folder: Path) -> Any:
    return _litdata(folder, _of_page("litdata", "LitData"))


def _mosaic(folder: Path, size: int = data.SIZE) -> Any:
    if not folder.exists():
        with streaming.MDSWriter(out=str(folder), columns={"id": "int"}, size_limit=200) as writer:
            for index in range(size):
                writer.write(_number(index))
    return _of_page("mosaic", "Mosaic")(
        local=str(folder), shuffle=True, shuffle_seed=3, batch_size=data.BATCH_SIZE
    )


def _uneven_mosaic(folder: Path) -> Any:
    return _mosaic(folder, data.SIZE + 2)


def _with_noise(samples: list[dict[str, int]]) -> Any:
    return default_collate([data.sample(int(sample["id"])) for sample in samples])


_MAKERS = {
    "litdata": _litdata,
    "litdata counted": _litdata_counted,
    "mosaic": _mosaic,
    "uneven mosaic": _uneven_mosaic,
}


def train(run: Run, library: str, workers: int) -> None:
    made = DataLoader(
        _MAKERS[library](run.folder / "data"),
        batch_size=data.BATCH_SIZE,
        collate_fn=_with_noise,
        num_workers=workers,
        snapshot_every_n_steps=1,
        timeout=120 if workers else 0,
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
                state = made.state_dict()
                if workers:  # else the program's own dataset changes, and it may be a replay
                    replays = not all(stream["mark"] for stream in state["streams"])
                    assert replays == (library == "litdata"), state["streams"]
                torch.save({"net": net.state_dict(), "loader": state}, saved)
