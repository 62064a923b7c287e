"""Trainings on datasets and transforms of libraries, in a loop of one's own."""

from __future__ import annotations

import io
import random
import re
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import albumentations
import datasets
import monai
import numpy as np
import torch
import torch_geometric
import webdataset
from ignite.engine import Engine, Events
from torch.utils.data import Dataset, IterableDataset, default_collate
from torch_geometric.loader.dataloader import Collater

from picklable_loader import ShuffleBuffer, current_seed

from . import data
from .apart import make_importable
from .harness import Run, seed_all

make_importable()  # streaming and timm import torchvision

import litdata  # noqa: E402
import streaming  # noqa: E402
from test_docs import ROOT, blocks  # noqa: E402
from timm.data.loader import PrefetchLoader, fast_collate  # noqa: E402
from torchvision.transforms import v2  # noqa: E402


@dataclass
class Library:
    """What a library brings.

    Attributes:
        dataset: makes it, for one of `data.LOADERS`, of the files in a folder.
        files: writes these.
        options: of each loader.
        ours: of this package's.
        own: the library's loader, which is compared instead of torch's.
        around: what reads the loader, and gives its batches.
        ahead: batches that it holds back in mid-epoch.
        at_once: our workers read nothing again after a resume.
    """

    dataset: Callable[[str, Path], Any]
    files: Callable[[Path], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    own: Callable[..., Any] = torch.utils.data.DataLoader
    around: Callable[[Any], Any] = iter
    ahead: int = 0
    at_once: bool = False


def _with_noise(samples: list[dict[str, Any]]) -> Any:
    return default_collate([data.sample(int(sample["id"])) for sample in samples])


def _number(index: int) -> dict[str, int]:
    return {"id": index}


class Images(Dataset[Any]):
    """Images of a transform, whose draws are their noise."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return data.SIZE

    def __getitem__(self, index: int) -> data.Sample:
        image = np.full((8, 8, 3), index, dtype=np.uint8)
        noise = torch.as_tensor(self.transform(image)).double().flatten() / 255
        x = torch.stack([noise.mean(), noise.std(), noise[0], noise[-1]]).float()
        return {"id": torch.tensor(index), "noise": noise, "x": x}


def _torchvision(kind: str, folder: Path) -> Any:
    noise = v2.Compose([v2.ToImage(), v2.ColorJitter(0.4), v2.RandomCrop(8, padding=2)])
    return Images(noise)


def _albumentations(kind: str, folder: Path) -> Any:
    noise = albumentations.GaussNoise(p=1)
    pipeline = albumentations.Compose([noise, albumentations.HorizontalFlip()], seed=137)
    return Images(OfImage(pipeline))


class OfImage:
    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __call__(self, image: Any) -> Any:
        return self.pipeline(image=image)["image"]


def _monai(kind: str, folder: Path) -> Any:
    noise = monai.transforms.RandGaussianNoise(prob=1)
    pipeline = monai.transforms.Compose([noise, monai.transforms.RandFlip(prob=0.5)])
    pipeline.set_random_state(137)
    return Images(pipeline)


class Graphs(data.Map):
    def __getitem__(self, index: int) -> Any:
        sample = data.sample(index)
        graph = {"id": sample["id"], "noise": sample["noise"][None], "x": sample["x"][None]}
        return torch_geometric.data.Data(edge_index=torch.zeros(2, 1, dtype=torch.long), **graph)


def _table(kind: str, folder: Path) -> Any:
    return datasets.Dataset.from_dict({"id": [*range(data.SIZE)]})


def _streamed(kind: str, folder: Path) -> Any:
    return _table(kind, folder).to_iterable_dataset(num_shards=4)


def _shuffled(kind: str, folder: Path) -> Any:
    if kind.startswith("ours"):
        return ShuffleBuffer(_streamed(kind, folder), 8)
    return _streamed(kind, folder).shuffle(seed=3, buffer_size=8)


class Tars(IterableDataset[Any]):
    def __init__(self, folder: Path, ours: bool) -> None:
        self.folder, self.ours = folder, ours

    def __iter__(self) -> Iterator[dict[str, int]]:
        urls = [str(path) for path in sorted(self.folder.glob("*.tar"))]
        pipe = webdataset.WebDataset(urls, shardshuffle=False)
        seed = current_seed() if self.ours else torch.initial_seed()
        for sample in pipe.shuffle(8, rng=random.Random(seed)).decode():
            yield {"id": int(sample["txt"])}


def _tars(folder: Path) -> None:
    folder.mkdir()
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(10 * shard, 10 * shard + 10):
                info = tarfile.TarInfo(f"{number:03}.txt")
                info.size = len(text := str(number).encode())
                archive.addfile(info, io.BytesIO(text))


def _webdataset(kind: str, folder: Path) -> Any:
    return Tars(folder, kind.startswith("ours"))


class Pictures(data.Map):
    def __getitem__(self, index: int) -> Any:
        return np.random.randint(0, 256, (3, 8, 8), dtype=np.uint8), index


def _prefetched(loader: Any) -> Iterator[Any]:
    for images, ids in PrefetchLoader(loader, device=torch.device("cpu")):
        noise = images.double().flatten(1)
        yield {"id": ids, "noise": noise, "x": noise[:, :4].float()}


# --- LitData, MosaicML streaming -----------------------------------------------------------------


def _of_page(library: str, name: str) -> Any:
    """A class of the page's block, the rest of which opens "data"."""
    recipe: dict[str, Any] = {}
    ((_, block),) = blocks(ROOT / "docs" / "frameworks" / f"{library}.md", "```python needs data")
    exec(re.split("\n(?=dataset =|loader =)", block)[0], recipe)
    return recipe[name]


def _chunks(folder: Path) -> None:
    litdata.optimize(
        fn=_number,
        inputs=list(range(data.SIZE)),
        output_dir=str(folder),
        num_workers=1,
        chunk_size=4,
        verbose=False,
    )


def _litdata(kind: str, folder: Path, counted: bool = False) -> Any:
    made = litdata.StreamingDataset
    if counted:
        made = _of_page("litdata", "LitData")
    return made(str(folder), shuffle=True, seed=3)


def _shards(folder: Path, size: int = data.SIZE) -> None:
    with streaming.MDSWriter(out=str(folder), columns={"id": "int"}, size_limit=200) as writer:
        for index in range(size):
            writer.write(_number(index))


def _mosaic(kind: str, folder: Path) -> Any:
    made = streaming.StreamingDataset
    if kind.startswith("ours"):
        made = _of_page("mosaic", "Mosaic")
    return made(local=str(folder), shuffle=True, shuffle_seed=3, batch_size=data.BATCH_SIZE)


_NOISE: dict[str, Any] = {"collate_fn": _with_noise}
#: a state with each batch, and not once a second
_STREAMED = {"snapshot_every_n_steps": 1}

LIBRARIES = {
    "hf map": Library(_table, options=_NOISE),
    "hf stream": Library(_streamed, options=_NOISE, ours={"num_streams": 2}),
    "hf shuffled": Library(_shuffled, options=_NOISE, ours={"num_streams": 2}),
    "webdataset": Library(_webdataset, _tars, _NOISE, {"num_streams": 2}),
    "pyg": Library(
        lambda kind, folder: Graphs(),
        options={"collate_fn": Collater(Graphs())},
        own=torch_geometric.loader.DataLoader,
    ),
    "torchvision": Library(_torchvision),
    "albumentations": Library(_albumentations),
    "monai": Library(_monai, own=monai.data.DataLoader),
    "litdata": Library(_litdata, _chunks, _NOISE, _STREAMED, litdata.StreamingDataLoader),
    "litdata counted": Library(
        partial(_litdata, counted=True), _chunks, _NOISE, _STREAMED, at_once=True
    ),
    "mosaic": Library(
        _mosaic, _shards, _NOISE, _STREAMED, streaming.StreamingDataLoader, at_once=True
    ),
    "uneven mosaic": Library(
        _mosaic, partial(_shards, size=data.SIZE + 2), _NOISE, _STREAMED, at_once=True
    ),
    "timm": Library(
        lambda kind, folder: Pictures(),
        options={"collate_fn": fast_collate},
        ours={"remember": 1},
        around=_prefetched,
        ahead=1,
    ),
}


#: of all runs; each run has a copy, as a killed one leaves locks
_FILES = tempfile.TemporaryDirectory()


def _files(run: Run, library: str) -> Path:
    folder, made = run.folder / "data", Path(_FILES.name) / library
    write = LIBRARIES[library].files
    if write is not None and not folder.exists():
        if not made.exists():
            write(made)
            seed_all()  # which it may draw from
        shutil.copytree(made, folder)
    return folder


def train(run: Run, loader: str, workers: int, library: str) -> None:
    warnings.simplefilter("ignore")
    it, ours = LIBRARIES[library], loader.startswith("ours")
    options = {**it.options, **(it.ours if ours else {"own": it.own})}
    dataset = it.dataset(loader, _files(run, library))
    made = data.counting(loader, dataset, workers, it.around, **options)
    net = data.model(dropout=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    saved = run.folder / "saved.pt"
    if run.resumes:
        state = torch.load(saved, weights_only=False)
        made.load_state_dict(state["loader"])
        net.load_state_dict(state["net"])
    while made.epoch < data.EPOCHS:
        if ours:
            made.set_epoch(made.epoch)
        for batch in it.around(made) if ours else made:
            optimizer.zero_grad()
            loss = data.loss(net, batch)
            loss.backward()
            optimizer.step()
            run.note(batch, loss)
            if run.steps == run.checkpoint:
                ahead = it.ahead if ours and run.steps % data.BATCHES else 0
                state = made.state_dict(**({"behind": ahead} if ahead else {}))
                if it.at_once and workers and ours:
                    assert all(stream["mark"] for stream in state["streams"])
                torch.save({"net": net.state_dict(), "loader": state}, saved)


def ignite(run: Run, loader: str, workers: int) -> None:
    """ignite's engine counts the epochs."""
    warnings.simplefilter("ignore")
    more = {"at_epoch_end": "next"} if loader.startswith("ours") else {}
    made = data.loader(loader, data.Map(), workers, **more)
    net = data.model(dropout=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(engine: Engine, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = data.loss(net, batch)
        loss.backward()
        optimizer.step()
        return batch, loss.item()

    engine = Engine(step)
    saved = run.folder / "saved.pt"

    @engine.on(Events.ITERATION_COMPLETED)
    def note() -> None:
        run.note(*engine.state.output)
        if run.steps == run.checkpoint:
            parts = {"net": net, "engine": engine, "loader": made}
            torch.save({name: part.state_dict() for name, part in parts.items()}, saved)

    if run.resumes:
        state = torch.load(saved, weights_only=False)
        net.load_state_dict(state["net"])
        engine.load_state_dict(state["engine"])
        made.load_state_dict(state["loader"])
    lengths = {} if run.resumes else {"epoch_length": data.BATCHES}
    engine.run(made, max_epochs=data.EPOCHS, **lengths)
