"""The states of torchdata's StatefulDataLoader (0.10 and 0.11), read with all checks.

Nothing of torchdata is imported: a state is a dict, and its exact keys say that it is one. Each
field is checked by its exact type, and nothing in it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...errors import SYMPTOMS, DamagedStateError, ForeignStateError
from .arrays import NotPlain
from .plain import MAPPINGS, encode, is_endless, parts_of

#: what people's code gives
_ANY = object
#: By record, its keys. A value is of one of the types, or is a record of that name.
_ITERATION: dict[str, Any] = {
    "_sampler_iter_state": _ANY,
    "_index_sampler_state": _ANY,
    "_sampler_iter_yielded": int,
    "_IterableDataset_len_called": int | None,
    "_shared_seed": int | None,
}
_STREAM = {"dataset_state": _ANY, "fetcher_state": dict | None}
_RECORDS: dict[str, dict[str, Any]] = {
    "of one process": {
        **_ITERATION, **_STREAM, "_num_yielded": int, "_iterator_finished": bool
    },
    "of workers": {
        "_snapshot": "snapshot", "_steps_since_snapshot": int, "_iterator_finished": bool
    },
    "snapshot": {
        "_snapshot_step": int,
        "_last_yielded_worker_id": int,
        "_main_snapshot": "main",
        "_worker_snapshots": dict,
    },
    "main": {**_ITERATION, "_num_workers": int, "_base_seed": int},
    "worker": {**_STREAM, "worker_id": int},
    "fetcher": {"fetcher_ended": bool, "dataset_iter_state": _ANY},
    "batches": {"samples_yielded": int, "sampler_state": _ANY, "sampler_iter_state": _ANY},
    "random": {"yielded": int, "generator": torch.Tensor},
    "distributed": {"yielded": int},
}  # fmt: skip
#: what a sampler that has no state does not give to its BatchSampler
_MAY_LACK = {"sampler_state", "sampler_iter_state"}
#: above all numbers of batches; seeds may be larger
_MOST = 2**53


@dataclass(frozen=True)
class TorchdataState:
    """A state of torchdata's loader."""

    #: batches that were delivered, and tasks that the sampler had given, at the snapshot
    delivered: int
    drawn: int
    #: batches that were delivered after it
    since: int
    #: the epoch is over
    finished: bool
    #: 0: the batches were made in the main process
    workers: int
    #: that gave the newest batch
    last_worker: int
    #: from which workers were seeded; 0: there are none
    base_seed: int
    #: the dataset is a DataPipe
    of_datapipe: bool
    #: the dataset is iterable-style
    iterable: bool
    #: torchdata 0.10 has written it, as far as can be seen
    of_0_10: bool
    #: samples that torchdata's BatchSampler has gathered; None: there was none
    samples: int | None
    #: what the sampler and its iterator have saved, as they gave it; None: nothing
    sampler: Any
    sampler_iterator: Any
    #: by worker, or of the main process, the state of the dataset; see `stream_states`
    states: tuple[dict[str, Any], ...]
    #: those of "dataset" and "iterator" whose states hold that of a random generator
    random: frozenset[str]

    def again(self) -> str:
        """The advice where the state has only the number of batches."""
        streams = f", num_streams={self.workers}" if self.workers and self.iterable else ""
        return (
            "Finish the epoch with torchdata. Or begin it again and pass over what was seen: "
            f"`it = iter(DataLoader(...{streams})); it.skip({self.delivered + self.since})`, which "
            "is right if sampler and dataset give the same once more"
        )


def is_torchdatas(state: Any) -> bool:
    """It has exactly the keys of a state of torchdata's loader."""
    return is_record(state, "of one process") or is_record(state, "of workers")


def is_record(value: Any, kind: str) -> bool:
    """A value is a dict with exactly the keys of a kind of record."""
    if type(value) is not dict or not set(map(type, value)) <= {str}:
        return False
    keys = _RECORDS[kind].keys()
    return keys - _MAY_LACK <= value.keys() <= keys


def read(state: dict[str, Any]) -> TorchdataState:
    """The state, of which `is_torchdatas` is true.

    Raises:
        DamagedStateError: a field has a type or a value that torchdata never writes.
        ForeignStateError: people's ``state_dict`` has given something that no state of ours holds.
    """
    if "_snapshot" in state:
        _check(state, "of workers", "")
        snapshot, since = state["_snapshot"], state["_steps_since_snapshot"]
        main, streams = snapshot["_main_snapshot"], _workers(snapshot)
        delivered, last = snapshot["_snapshot_step"], snapshot["_last_yielded_worker_id"]
    else:
        _check(state, "of one process", "")
        main, streams, delivered, last, since = state, {"": state}, state["_num_yielded"], 0, 0
    index, iterator = main["_index_sampler_state"], main["_sampler_iter_state"]
    samples, of_0_10 = None, iterator is None and is_record(index, "batches")
    if of_0_10 or (index is None and is_record(iterator, "batches")):
        batches = index if of_0_10 else iterator
        _check(batches, "batches", "samples_yielded")
        samples = batches["samples_yielded"]
        index, iterator = batches.get("sampler_state"), batches.get("sampler_iter_state")
    drawn = main["_sampler_iter_yielded"]
    ahead = of_0_10 and samples and not drawn  # 0.10 has the epoch before until the first batch
    return TorchdataState(
        delivered=delivered,
        drawn=drawn,
        since=since,
        finished=state["_iterator_finished"] or bool(ahead),
        workers=main.get("_num_workers", 0),
        last_worker=last,
        base_seed=main.get("_base_seed", 0),
        of_datapipe=main["_shared_seed"] is not None,
        iterable=all(each["fetcher_state"] is not None for each in streams.values()),
        of_0_10=of_0_10,
        samples=samples,
        sampler=index,
        sampler_iterator=iterator,
        states=tuple(_stream_state(each, path) for path, each in streams.items()),
        random=frozenset().union(*map(_random_in, streams.values())),
    )


def _workers(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The records of the workers, by their paths."""
    count, path = snapshot["_main_snapshot"]["_num_workers"], "_snapshot._worker_snapshots"
    records, last = snapshot["_worker_snapshots"], snapshot["_last_yielded_worker_id"]
    if not 0 < count == len(records) or [*records] != [f"worker_{at}" for at in range(count)]:
        raise DamagedStateError(path, f"{count} workers, in order", [*records])
    if last >= count:
        raise DamagedStateError("_snapshot._last_yielded_worker_id", f"below {count}", last)
    for name, record in records.items():
        _check(record, "worker", f"{path}.{name}")
    if len({record["fetcher_state"] is None for record in records.values()}) > 1:
        raise DamagedStateError(path, "fetcher_state in all, or in none", [*records])
    return {f"{path}.{name}.": record for name, record in records.items()}


def _stream_state(record: dict[str, Any], path: str) -> dict[str, Any]:
    found = {"dataset": form_of(record["dataset_state"], f"{path}dataset_state")}
    if (fetcher := record["fetcher_state"]) is not None:
        _check(fetcher, "fetcher", f"{path}fetcher_state")
        field = f"{path}fetcher_state.dataset_iter_state"
        found["iterator"] = form_of(fetcher["dataset_iter_state"], field)
        found["over"] = fetcher["fetcher_ended"] or None
    return {name: value for name, value in found.items() if value is not None}


def _random_in(record: dict[str, Any]) -> set[str]:
    fetcher = record["fetcher_state"] or {"dataset_iter_state": None}
    parts = {"dataset": record["dataset_state"], "iterator": fetcher["dataset_iter_state"]}
    return {name for name, part in parts.items() if _holds_random(part)}


def _holds_random(value: Any) -> bool:
    """It is, or contains, the state of a random generator; its size was checked."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if _is_random(part):
            return True
        waiting += parts_of(part)
    return False


def _is_random(value: Any) -> bool:
    """It is the state of a generator of torch's, numpy's or Python's, as their methods give it."""
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.uint8 and value.shape == (5056,)
    if type(value) in MAPPINGS:
        return "bit_generator" in value
    if type(value) not in (list, tuple) or len(value) < 3:
        return False
    first, words = value[:2]
    if type(first) is str:
        return first == "MT19937"
    return type(words) in (list, tuple) and len(words) == 625


def random_sampler(state: TorchdataState) -> tuple[int, torch.Generator] | None:
    """Indices that torchdata's RandomSampler has given, and a generator as it was before them.

    None: the sampler was another one.
    """
    record = state.sampler_iterator
    if state.sampler is not None or not is_record(record, "random"):
        return None
    _check(record, "random", "sampler_iter_state")
    generator, found = torch.Generator(), record["generator"]
    try:
        generator.set_state(found.detach())
    except SYMPTOMS:
        field = "sampler_iter_state.generator"
        raise DamagedStateError(field, "the state of a generator", found) from None
    return record["yielded"], generator


def form_of(value: Any, path: str) -> Any:
    """The plain form of what people's ``state_dict`` gave, as a state of ours has it.

    Raises:
        ForeignStateError: it holds an object of a class that has no plain form.
    """
    if is_endless(value):
        raise DamagedStateError(path, "a value whose parts are in few places each", value)
    try:
        return encode(value)
    except NotPlain as found:
        advice = "Have its state_dict return numbers, text, containers, arrays or tensors"
        raise refused(f"{path} cannot be taken over: it holds {found}", advice) from None


def refused(reason: str, advice: str) -> ForeignStateError:
    """The error of a state that cannot be taken over, or not exactly."""
    return ForeignStateError("torchdata's StatefulDataLoader", f"{reason}. {advice}.")


def _check(record: Any, kind: str, path: str) -> None:
    """Raise DamagedStateError unless a value is a record of its kind."""
    if not is_record(record, kind):
        raise DamagedStateError(path, f"a dict with {[*_RECORDS[kind]]}", record)
    for name, types in _RECORDS[kind].items():
        value, field = record.get(name), f"{path}.{name}".lstrip(".")
        if isinstance(types, str):
            _check(value, types, field)
        elif types is _ANY:
            continue
        elif type(value) not in getattr(types, "__args__", (types,)):
            raise DamagedStateError(field, getattr(types, "__name__", str(types)), value)
        elif type(value) is int and not 0 <= value < _MOST and "seed" not in name:
            raise DamagedStateError(field, "a whole number from 0", value)
