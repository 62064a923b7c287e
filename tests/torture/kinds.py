"""Kinds: the loaders that are tortured, each with what is promised of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chaos.datasets import Counting, Pickled, Remembering, Uneven, WithState
from laws.cases import ALL, Case
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from zoo import inexact
from zoo import odd_samplers as odd
from zoo import streams
from zoo.datasets import Noisy
from zoo.streams import ByClass, Generated, StatefulIterator

from picklable_loader import DataLoader, Interleave, ShuffleBuffer

#: arguments that torch refuses without workers
_OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context")


Promise = Literal["exact", "honest", "none"]


@dataclass(frozen=True)
class Kind:
    """A loader that can be built anew.

    Attributes:
        arguments: makes its dataset, its sampler and all that decides about its batches.
        promise: "exact": it is saved, and goes on exactly. "honest": it may be refused or warned
            about as well. "none": the pages say that it may go on in another way without a word.
        same_workers: another number of workers is another order, as in torch.
        limit: batches to take of an epoch; None: all.
        json: what the user's own parts have for a state is plain.
    """

    arguments: Callable[[], dict[str, Any]]
    promise: Promise = "exact"
    same_workers: bool = False
    limit: int | None = None
    json: bool = True

    def loader(self, workers: int, **options: Any) -> DataLoader[Any]:
        """Build it."""
        if not workers:
            options = {name: given for name, given in options.items() if name not in _OF_WORKERS}
        return DataLoader(num_workers=workers, **{**self.arguments(), **options})

    @property
    def has_streams(self) -> bool:
        """Streams serve its batches: the dataset is iterable-style, or has a state."""
        dataset = self.arguments()["dataset"]
        return isinstance(dataset, IterableDataset) or hasattr(dataset, "state_dict")


def _of_case(case: Case) -> Kind:
    def arguments() -> dict[str, Any]:
        made = {"dataset": case.dataset(), **case.batching, **case.arguments()}
        if "batch_sampler" in made:
            del made["batch_size"]
        return made

    fixed = case.same_workers or case.counts_iters
    return Kind(arguments, same_workers=fixed, limit=case.limit, json=case.json)


def _data(make: Callable[[], Any], **more: Any) -> Kind:
    return Kind(lambda: {"dataset": make(), "batch_size": 3}, **more)


def _sampled(make: Callable[[], Any], **more: Any) -> Kind:
    return Kind(lambda: {"dataset": Noisy(), "batch_size": 3, "sampler": make()}, **more)


def _batched(make: Callable[[], Any], **more: Any) -> Kind:
    return Kind(lambda: {"dataset": Noisy(24), "batch_sampler": make()}, **more)


#: they set attributes in ``__iter__``, which a state_dict in a later epoch warns about
_SET_ATTRIBUTES = ("Itself", "Noting", "Keeping", "Reshuffled")


def _stream(kind: streams.Kind) -> Kind:
    promise: Promise = "honest" if str(kind) in _SET_ATTRIBUTES else "exact"
    return _data(kind.make, same_workers=kind.counts, json=False, promise=promise)


def _all_shuffled() -> IterableDataset[Any]:
    mixed = Interleave([StatefulIterator(), Generated()], weights=[2, 1], seed=3)
    return ShuffleBuffer(mixed, size=5, seed=4)


def _with_a_generator() -> dict[str, Any]:
    # Under the default schedule no two runs are alike, and there is nothing to compare with.
    return {"dataset": inexact.OwnGenerator(), "batch_size": 3, "schedule": "round_robin"}


def _tensors() -> TensorDataset:
    import torch

    return TensorDataset(torch.arange(10), torch.arange(10.0))


KINDS: Mapping[str, Kind] = {
    **{case.name: _of_case(case) for case in ALL},
    **{f"stream {kind}": _stream(kind) for kind in streams.KINDS},
    "stream all shuffled": _data(_all_shuffled),
    "stream chained": _data(lambda: ChainDataset([Generated(), ByClass()])),
    "stream remembering": _data(lambda: Remembering(24), same_workers=True),
    "stream pickled": _data(lambda: Pickled(24)),
    "stream with state": _data(lambda: WithState(24)),
    "map with state": _data(lambda: Counting(12), same_workers=True),
    "uneven batches": _batched(lambda: Uneven(24)),
    "subset": _data(lambda: Subset(Noisy(20), range(3, 13))),
    "concatenated": _data(lambda: ConcatDataset([Noisy(4), Noisy(6)])),
    "tensors": _data(_tensors),
    "local class": _data(inexact.local_noisy),
    "listening, with state": _sampled(inexact.ListeningWithState, same_workers=True),
    # what cannot be exact; of some it is not said yet when it is not, see the torture's report
    "listening": _sampled(inexact.Listening, same_workers=True, promise="none"),
    "listening, with weights": _sampled(
        inexact.ListeningWithWeights, same_workers=True, promise="honest"
    ),
    "by method": _sampled(inexact.by_method, promise="honest"),
    "by lambda": _sampled(inexact.by_lambda, promise="honest"),
    "by partial": _sampled(inexact.by_partial, promise="honest"),
    "by namespace": _sampled(inexact.by_namespace, promise="honest"),
    "of its class": _sampled(inexact.OfItsClass, promise="honest"),
    "goes round": _sampled(odd.GoesRound, promise="honest"),
    "shuffles samplers": _sampled(odd.ShufflesSamplers, promise="honest"),
    "a generator": _sampled(lambda: (index for index in range(10)), promise="honest"),
    "map with a generator": Kind(_with_a_generator, same_workers=True, promise="honest"),
    "stream counts passes": _data(inexact.CountsPasses, same_workers=True, promise="honest"),
    "stream shuffles itself": _data(inexact.ShufflesItself, same_workers=True, promise="honest"),
}
