"""A loader's position, made of a state of torchdata's StatefulDataLoader.

A state that lacks what decides the rest of the epoch is refused, and nothing is guessed.
docs/migrating.md says what is taken over.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ..core.cursor import Saved
from ..core.plan import Unit
from ..core.seeds import base_seed
from ..core.streams import StreamPosition
from ..datasets.protocol import is_hugging_face, is_stateful
from ..errors import DamagedStateError, Difference, StateMismatch
from ..orders.attributes import changed
from ..orders.torch_samplers import describe
from ..rng.generators import generator_to_text
from ..rng.source import Source, random_int64
from ..saving.states.torchdata import TorchdataState, form_of, is_record, random_sampler, refused
from .spec import Spec


def taken_over(spec: Spec, source: Source, given: TorchdataState, beginning: Saved) -> Saved:
    """The position in a state of torchdata, as if this loader had saved it.

    Args:
        spec: how the loader is set up.
        source: of its random draws.
        given: the state.
        beginning: of an epoch of the loader.

    Raises:
        ForeignStateError: the state does not hold what the rest of the epoch depends on.
        StateMismatch, DamagedStateError: it is of another loader, or torchdata never writes it.
    """
    _check_kind(spec, given)
    if given.of_0_10 and not given.drawn and given.samples:  # it has not begun its next epoch
        given = replace(given, finished=True)
    cursor, fits = beginning.cursor, dict(beginning.fits)
    epoch = cursor.announced or 0
    changes: dict[str, Any] = {}
    fits |= _grouping(spec, given)
    if not spec.iterable:
        changes = _position(spec, given, fits["batch_size"])
        of_order = _of_known if spec.known else _of_custom
        changes |= of_order(spec, source, given, changes)
    if given.finished:
        changes |= {"step": 0, "next_step": 0, "position": 0, "streams": _next_streams(spec, given)}
    else:
        steps = changes.get("step", given.delivered + given.since)
        seed = base_seed(given.base_seed if source.seed is None else source.seed, epoch)
        streams = _streams(spec, given) if spec.streamed else ()
        changes |= {"step": steps, "next_step": steps, "base_seed": seed, "streams": streams}
    changes["rng"] = {**cursor.rng, **changes.get("rng", {})}
    return Saved(cursor._replace(epoch=epoch, **changes), fits)


def _check_kind(spec: Spec, given: TorchdataState) -> None:
    if given.of_datapipe:
        raise refused("It is of a DataPipe, of which it has no state", _again(given))
    if spec.shared:
        raise refused(
            "It is the state of one rank, and shard= shares one order between all ranks",
            "Finish the epoch in a loader without shard=, with this rank's sampler",
        )
    if spec.options.seeding == "worker" and spec.workers and not given.finished:
        raise refused(
            'It has no states of the workers\' generators, with which seeding="worker" goes on',
            'Finish the epoch with seeding="batch"',
        )
    if given.iterable != spec.iterable:
        kinds = {False: "map-style", True: "iterable-style"}
        raise _unlike("dataset", kinds[spec.iterable], kinds[given.iterable])


def _unlike(name: str, expected: str, found: str) -> StateMismatch:
    advice = "Give this loader the dataset and the sampler that torchdata's had."
    return StateMismatch([Difference(name, expected, found)], advice)


def _again(given: TorchdataState) -> str:
    """What to do where a state says how many batches there were, and nothing else."""
    streams = f", num_streams={given.workers}" if given.workers and given.iterable else ""
    return (
        "Finish the epoch with torchdata. Or begin it again and pass over what was seen: "
        f"`it = iter(DataLoader(...{streams})); it.skip({given.delivered + given.since})`, which "
        "is right if sampler and dataset give the same once more"
    )


# --- the order -----------------------------------------------------------------------------------


def _grouping(spec: Spec, given: TorchdataState) -> dict[str, Any]:
    """The part of the fingerprint that the state shows: how torchdata's loader made its batches."""
    size, drawn, samples = spec.grouping.batch_size, given.drawn, given.samples
    length = spec.length() if spec.known else None
    if samples is None:  # there was no BatchSampler of torchdata's
        found = given.sampler_iterator if given.sampler is None else given.sampler
        if found is not None and spec.grouping.unit is Unit.SAMPLE_OF_BATCH:
            raise DamagedStateError("_sampler_iter_state", "that of a BatchSampler", found)
        return {"batches_from": Unit.SAMPLE.value} if spec.iterable else {}
    fits: dict[str, Any] = {"batches_from": Unit.SAMPLE_OF_BATCH.value}
    last = (drawn - 1) * size < samples < drawn * size and samples == (length or samples)
    if samples != drawn * size and not last and not given.finished:
        if not drawn:
            raise DamagedStateError("samples_yielded", "0, as there was no batch", samples)
        fits["batch_size"] = -(-samples // drawn)
    elif length is not None and samples > length:
        fits["sampler_length"] = samples  # at least
    return fits


def _position(spec: Spec, given: TorchdataState, size: int) -> dict[str, Any]:
    """Step and position of map-style data, in batches of that size."""
    if given.workers and given.drawn != given.delivered and not given.finished:
        raise refused(
            f"Its sampler has given {given.drawn} batches, of which {given.delivered} were "
            "delivered: a batch has raised, or they came out of order (in_order=False)",
            _again(given),
        )
    length = sys.maxsize if (length := spec.length()) is None else length
    samples = min(given.drawn * size, length) if given.samples is None else given.samples
    position = max(samples, min(samples + given.since * size, length))
    return {"step": given.drawn + given.since, "position": position}


def _of_known(
    spec: Spec, source: Source, given: TorchdataState, changes: dict[str, Any]
) -> dict[str, Any]:
    """Fields of the cursor, for a sampler that has an order of ours."""
    sampler, state, random = spec.sampler, given.sampler, random_sampler(given)
    if isinstance(sampler, DistributedSampler) and is_record(state, "yielded"):
        state = None  # of torchdata's own, which gives the same order
    if isinstance(sampler, SequentialSampler | DistributedSampler | list | tuple | range):
        if state is None and given.sampler_iterator is None:
            return {}
        kind = "RandomSampler" if random else "one that has a state"
        raise _unlike("sampler", describe(sampler), kind)
    if random is None or not isinstance(sampler, RandomSampler):
        raise refused(
            f"It has no random state for the order of {describe(sampler)}: expected that of "
            "torchdata's own RandomSampler, as shuffle=True makes it",
            _again(given),
        )
    own, loaders = spec.generators.get("sampler"), spec.generators.get("loader")
    yielded, generator = random
    if given.of_0_10 and own is not None and own is loaders:
        raise refused(
            "torchdata 0.10 has saved its generator before the base seed was drawn from it, and "
            "itself goes on with another order. Expected a RandomSampler whose generator is not "
            "the loader's",
            "Finish the epoch with torchdata, without a restart",
        )
    if given.finished:
        _pass_epoch(spec, given, generator)
    elif yielded != (samples := given.drawn if given.samples is None else given.samples):
        raise DamagedStateError("yielded", f"{samples}, as samples_yielded", yielded)
    length = 32 if sampler.replacement else len(sampler.data_source)
    order = {
        "generator": generator_to_text(generator),
        "chunks": sampler.num_samples // max(1, length) + 1,
    }
    if own is None or source.seed is not None:
        return {"order": order}
    _pass_epoch(spec, given, generator)
    name = "loader" if own is loaders else "sampler"
    return {"order": order, "rng": {name: generator_to_text(generator)}}


def _pass_epoch(spec: Spec, given: TorchdataState, generator: torch.Generator) -> None:
    """Draw what torchdata draws from its sampler's generator until the next epoch's order."""
    size, total = len(spec.sampler.data_source), spec.sampler.num_samples
    replacement, opens_twice = spec.sampler.replacement, given.workers and not spec.lives_on

    def draw(count: int) -> None:
        if replacement:
            torch.randint(size, (count,), generator=generator)
        else:
            torch.randperm(size, generator=generator)

    length = 32 if replacement else size
    whole, rest = divmod(total, length)
    for _ in range(whole):
        draw(length)
    if given.of_0_10:
        draw(rest)
        return
    for _ in range(bool(rest) + bool(opens_twice)):
        draw(length)
    if opens_twice and "loader" in spec.generators:
        random_int64(generator)


def _of_custom(
    spec: Spec, source: Source, given: TorchdataState, changes: dict[str, Any]
) -> dict[str, Any]:
    """Fields of the cursor, for anybody's sampler: the states that it has itself."""
    name, own, iterator = type(spec.sampler).__qualname__, given.sampler, given.sampler_iterator
    if own is not None and not is_stateful(spec.sampler):
        raise _unlike("sampler", f"{name}, without state_dict", "one that has a state")
    state = {} if own is None else {"state": form_of(own, "state_dict() of the sampler")}
    if given.finished and isinstance(spec.sampler, DistributedSampler):
        return {"sampler": {}}  # torchdata's own would pass over its next epoch
    if own is None and (is_stateful(spec.sampler) or (iterator is None and not given.finished)):
        raise refused(f"It has no state of the sampler {name}", _again(given))
    if given.finished:
        return {"sampler": state}
    if given.since:
        raise refused(
            f"It has the state of the sampler {name} {given.since} batches ago",
            "Set its field '_steps_since_snapshot' to 0, load it, and pass over these: "
            f"`it = iter(loader); it.skip({given.since})`",
        )
    size = spec.grouping.batch_size
    order = {
        "opens": 1,
        "taken": changes["position"],
        "ended": given.samples is not None and given.samples % size > 0,
        "sampler": changed(spec.attributes(source), source.origin),
    }
    if own is not None:
        order["sampler_state"] = state["state"]
    if iterator is not None:
        order["iterator_state"] = form_of(iterator, "state_dict() of the sampler's iterator")
    return {"sampler": {}, "order": order}


# --- streams -------------------------------------------------------------------------------------


def _next_streams(spec: Spec, given: TorchdataState) -> tuple[StreamPosition, ...]:
    """The streams of the next epoch, if the one that is over has left a dataset that has a state.

    New workers have new copies of it. Hugging Face's states are of one iteration.
    """
    marks = _marks(spec, given)
    if given.workers and not spec.lives_on or is_hugging_face(spec.dataset):
        return ()
    if not any(marks):
        if spec.stateful:
            raise refused("It has no state of the dataset", _again(given))
        return ()
    if any(not each.ended and each.dataset is not None for each in given.streams if given.workers):
        raise refused(
            "Some of its workers have given their last batch and have not run to their end, which "
            "may change the dataset's state for the next epoch",
            "Set its field '_iterator_finished' to False, and load it with at_epoch_end=\"next\"",
        )
    return tuple(StreamPosition(mark=mark and {**mark, "over": True}) for mark in marks)


def _streams(spec: Spec, given: TorchdataState) -> tuple[StreamPosition, ...]:
    """The positions of the streams in this epoch."""
    marks, counts = _marks(spec, given), _delivered(spec, given)
    later = [0] * len(marks)
    if spec.iterable:
        running = [at for at, stream in enumerate(given.streams) if not stream.ended]
        turns = sorted(running, key=lambda at: (at <= given.last_worker, at))
        if given.since and not turns:
            raise DamagedStateError("_steps_since_snapshot", "0, as all have ended", given.since)
        for number, at in enumerate(turns):
            later[at] = len(range(number, given.since, len(turns)))
    elif given.since:
        raise refused(
            f"It has the states of the dataset {given.since} batches ago",
            "Save it with snapshot_every_n_steps=1",
        )
    for at, mark in enumerate(marks):
        if mark is None and counts[at]:
            whose = f"the dataset {type(spec.dataset).__qualname__} in stream {at}"
            raise refused(f"It has no state of {whose}", _again(given))
    return tuple(
        StreamPosition(count + more, stream.ended, mark, count)
        for count, more, stream, mark in zip(counts, later, given.streams, marks, strict=True)
    )


def _marks(spec: Spec, given: TorchdataState) -> list[dict[str, Any] | None]:
    marks: list[dict[str, Any] | None] = []
    for stream in given.streams:
        mark: dict[str, Any] = {}
        if stream.dataset is not None:
            if not spec.stateful:
                kind = f"{type(spec.dataset).__qualname__}, without state_dict"
                raise _unlike("dataset", kind, "one that has a state")
            mark["iterator" if is_hugging_face(spec.dataset) else "dataset"] = stream.dataset
        if stream.iterator is not None:
            mark["iterator"] = stream.iterator
        if mark and stream.ended:
            mark["over"] = True
        marks.append(mark or None)
    return marks


def _delivered(spec: Spec, given: TorchdataState) -> list[int]:
    """By stream, the batches that were delivered from it by the snapshot.

    Torchdata counts them together. Of streams that have ended only the sum matters: the others
    take turns after the one that gave the newest.
    """
    streams, last, count = len(given.streams), given.last_worker, given.delivered
    running = [at for at, stream in enumerate(given.streams) if not stream.ended]
    if not count:
        return [0] * streams
    turns = sum(at <= last for at in running)
    rounds, rest = divmod(count - turns, max(1, len(running)))
    counts = [rounds + (at <= last) if at in running else 0 for at in range(streams)]
    if len(running) < streams and rounds >= 0:
        counts[next(at for at in range(streams) if at not in running)] += count - sum(counts)
    elif rest or rounds < 0 or given.drawn != count:
        raise refused(
            f"Its {count} batches, the newest of worker {last}, are not those of {streams} workers "
            "in turn: some have ended (batch_size=None), or have raised, or in_order=False",
            _again(given),
        )
    return counts
