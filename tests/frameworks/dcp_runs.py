"""Trainings with torch.distributed.checkpoint, by the recipe of ``docs/distributed.md``."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_docs import ROOT, blocks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from . import data
from .harness import Run

_RECIPE: dict[str, Any] = {}
for _, block in blocks(ROOT / "docs" / "distributed.md", "```python no-run"):
    exec(block, _RECIPE)


class OneLeaf:
    """A loader that is not ours, as torchtitan saves it: each rank's state is one value."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.key = f"rank {dist.get_rank()}"

    def state_dict(self) -> dict[str, bytes]:
        return {self.key: pickle.dumps(self.made.state_dict())}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        self.made.load_state_dict(pickle.loads(state[self.key]))


def train(
    run: Run,
    loader: str,
    workers: int,
    kind: str,
    itself: bool = False,
    ddp: bool = False,
    at_once: bool = True,
) -> None:
    """Train with one of `data.LOADERS`.

    Args:
        itself: DCP is given our loader, and not our adapter.
        ddp: the model is copied to each rank, and not sharded.
        at_once: DCP writes before the next step, and not in a thread.
    """
    warnings.simplefilter("ignore")
    if itself or not loader.startswith("ours"):
        _RECIPE["LoaderState"] = (lambda made: made) if itself else OneLeaf
    dist.init_process_group("gloo")
    net = data.model(dropout=0.5)
    if ddp:
        net = DistributedDataParallel(net)
        # Freed with the GIL held, it waits for a gloo thread that wants the GIL (torch 2.13).
        run.outlives.append(net)
    else:
        for layer in net:
            fully_shard(layer) if [*layer.parameters()] else None
        fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    made = data.sharded(run, loader, workers, kind)
    folder, apart, writing = run.folder / "saved", dist.new_group(backend="gloo"), None
    if run.resumes:
        _RECIPE["resume"](folder, net, optimizer, made)
    while made.epoch < data.EPOCHS:
        for batch in made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            loss.backward()
            optimizer.step()
            if writing is not None:
                writing.result()
            run.note(batch, loss)
            if run.steps == run.checkpoint and at_once:
                _RECIPE["save"](folder, net, optimizer, made)
            elif run.steps == run.checkpoint:
                content = _RECIPE["content"](net, optimizer, made)
                writing = dcp.async_save(content, checkpoint_id=folder, process_group=apart)
    dist.destroy_process_group()
