"""Up to 4096 ranks read 10^12 samples and are interrupted a thousand times; no process, no list.

    python docs/elastic/trillion.py

It checks each life, and draws docs/elastic/trillion.png.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.orders.permutation import Permutation

PICTURE = Path(__file__).with_name("trillion.png")
SAMPLES = 10**12
MOST_RANKS = 4096
LIVES = 1000


class Huge(Dataset[int]):
    """A sample is its index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Life(NamedTuple):
    """What is read between two interruptions."""

    world: int
    batch_size: int
    #: samples of the epoch before it, and after it
    start: int
    end: int
    #: length of the state that ends it, as JSON
    state_bytes: int
    #: seconds of a processor from building the loader to the first batch
    resume_s: float


def loader(rank: int, world: int, batch_size: int, state: Any = None) -> Any:
    made: Any = DataLoader(
        Huge(), batch_size, shuffle="indexed", seed=3, shard=(rank, world), shard_tail="uneven",
        collate_fn=list, at_epoch_end="next",
    )  # fmt: skip
    if state is not None:
        made.load_state_dict(state)
    return made


def lives(seed: int = 1) -> list[Life]:
    """One epoch. Each life goes on from a state that some rank of the one before has saved.

    A rank's first batch is compared with the indices at its positions. So the positions say who
    reads which sample.
    """
    draw, found = random.Random(seed), list[Life]()
    state, start = None, 0
    for number in range(LIVES):
        world, size = draw.randint(1, MOST_RANKS), draw.choice([1, 2, 8, 32])
        rank, saver = draw.randrange(world), draw.randrange(world)
        began = process_time()
        reader = loader(rank, world, size, state)
        batch = next(iter(reader))
        resume_s = process_time() - began
        positions = range(start + rank, min(SAMPLES, start + world * size), world)
        ends = np.array([positions[0], positions[-1]], dtype=np.uint64)
        key = reader.state_dict()["order"]["key"]
        first, last = Permutation(SAMPLES, key)(ends).tolist()
        assert (batch[0], batch[-1], len(batch)) == (first, last, len(positions))
        iterator = iter(loader(saver, world, size, state))
        most = 2 * SAMPLES // (LIVES * world * size)
        iterator.skip(SAMPLES if number == LIVES - 1 else draw.randrange(1, most))
        state = iterator.state_dict()
        end = state["position"]
        found.append(Life(world, size, start, end, len(json.dumps(state)), resume_s))
        start = end
    return found


def draw_picture(found: list[Life]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    above.bar(range(LIVES), [life.world for life in found], width=1, color="C0")
    above.set(ylabel="ranks", title="10^12 samples, each read once, by ranks that change 999 times")
    below.fill_between(
        range(LIVES), 0, [life.end / SAMPLES for life in found], color="C2", step="post"
    )
    below.set(xlabel="interruptions", ylabel="share of the epoch", xlim=(0, LIVES), ylim=(0, 1))
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    epoch = lives()
    draw_picture(epoch)
    times = sorted(life.resume_s for life in epoch)
    print(f"{LIVES} lives, {min(e.world for e in epoch)} to {max(e.world for e in epoch)} ranks")
    print(f"largest state: {max(life.state_bytes for life in epoch)} bytes of JSON")
    print(f"resume, to the first batch: median {times[LIVES // 2] * 1e3:.1f} ms of a processor")
