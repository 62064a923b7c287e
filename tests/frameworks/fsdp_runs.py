"""A training with FSDP2 on two ranks, by the recipe of ``docs/distributed.md``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from test_docs import ROOT, blocks
from torch.distributed.fsdp import fully_shard

from . import data
from .harness import Run

_RECIPE: dict[str, Any] = {}
for _, block in blocks(ROOT / "docs" / "distributed.md", "```python no-run"):
    exec(block, _RECIPE)


def _loader(run: Run, loader: str, workers: int, kind: str) -> Any:
    options: dict[str, Any] = {"at_epoch_end": "next"}
    if kind == "own sampler":
        options["batch_sampler"] = data.ShardedBatches(run.rank, run.world)
        return data.loader(loader, data.Map(), workers, **options)
    options["shard"] = "auto"
    if kind == "sized stream":
        options["num_streams"] = 4
    return data.loader(loader, data.DATASETS[kind](2 * data.SIZE), workers, **options)


def train(run: Run, loader: str, workers: int, kind: str) -> None:
    dist.init_process_group("gloo")
    net = data.model(dropout=0.5)
    for layer in net:
        fully_shard(layer) if [*layer.parameters()] else None
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    made = _loader(run, loader, workers, kind)
    if run.resumes:
        _RECIPE["resume"](run.folder / "saved", net, optimizer, made)
    while made.epoch < data.EPOCHS:
        for batch in made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            loss.backward()
            optimizer.step()
            run.note(batch, loss)
            if run.steps == run.checkpoint:
                _RECIPE["save"](run.folder / "saved", net, optimizer, made)
    dist.destroy_process_group()
