"""Trainings with Ray Train; the server of the tests imports this module, and Ray's workers do."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from . import data
from .harness import Run, seed_all


def train(run: Run, **options: Any) -> None:
    """Train in two workers of the cluster at hand; this program dies with them.

    A program with the name and folder of one that died goes on from its checkpoint.
    """
    ray.init("auto", log_to_driver=False)
    trainer = TorchTrainer(
        _work,
        train_loop_config={"run": run, **options},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=str(run.folder), failure_config=FailureConfig(max_failures=0)
        ),
    )
    try:
        trainer.fit()
    except Exception:
        if run.phase == "killed":
            run.die()
        raise


def _work(config: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seed_all()
    program, loader, kind = config["run"], config["loader"], config["kind"]
    context = ray.train.get_context()
    run = replace(program, rank=context.get_world_rank(), world=context.get_world_size())
    net = prepare_model(data.model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    made, name = data.sharded(run, loader, config["workers"], kind), f"{run.rank}.pt"
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / name, weights_only=False)
        for part, state in zip((net, optimizer, made), saved, strict=True):
            part.load_state_dict(state)
    while made.epoch < data.EPOCHS:
        for batch in made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            loss.backward()
            optimizer.step()
            run.note(batch, loss)
            if run.steps == run.checkpoint:
                with tempfile.TemporaryDirectory() as folder:
                    saved = [part.state_dict() for part in (net, optimizer, made)]
                    torch.save(saved, Path(folder) / name)
                    ray.train.report({}, checkpoint=Checkpoint(folder))
                # Ray asks its workers for reports. It never hears of one whose worker dies before.
                ray.train.get_all_reported_checkpoints()
