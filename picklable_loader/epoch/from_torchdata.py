"""A loader's position, made of a state of torchdata's StatefulDataLoader.

A state that lacks what decides the rest of the epoch is refused, and nothing is guessed.
docs/migrating.md says what is taken over.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ..core.cursor import Saved
from ..core.plan import Unit
from ..core.seeds import base_seed, next_base_seed
from ..core.streams import StreamPosition
from ..datasets.protocol import is_hugging_face, is_stateful, loses_samples
from ..errors import DamagedStateError, Difference, ForeignStateError, StateMismatch, warn
from ..orders.attributes import changed
from ..orders.sampler_facts import describe
from ..rng.generators import generator_to_text
from ..rng.owned import ids_of_global, owned_in
from ..rng.source import Source, random_int64
from ..saving.states.plain import alike
from ..saving.states.torchdata import TorchdataState, form_of, is_record, random_sampler, refused
from .spec import Spec


def taken_over(spec: Spec, source: Source, given: TorchdataState, beginning: Saved) -> Saved:
    """The position in a state of torchdata, as if this loader had saved it.

    ``beginning`` is that of an epoch of the loader.

    Raises:
        ForeignStateError: the state does not hold what the rest of the epoch depends on.
        StateMismatch, DamagedStateError: it is of another loader, or torchdata never writes it.
    """
    _check_kind(spec, given)
    cursor, fits = beginning.cursor, {**beginning.fits, **_grouping(spec, given)}
    epoch, step = cursor.announced or 0, given.delivered + given.since
    changes: dict[str, Any] = {"position": 0}
    if not spec.iterable:
        step = given.drawn + given.since
        changes["position"] = _position(spec, given, fits["batch_size"])
        of_order = _of_known if spec.known else _of_custom
        changes |= of_order(spec, source, given, changes["position"])
    if given.finished:
        step = changes["position"] = 0
        changes["streams"] = _next_streams(spec, given)
    else:
        seed = given.base_seed if source.seed is None else source.seed
        changes["base_seed"] = base_seed(seed, epoch)
        changes["streams"] = _streams(spec, given) if spec.streamed else ()
    changes["worker_info"] = bool(given.workers) if changes["streams"] else None
    changes["rng"] = {**cursor.rng, **changes.get("rng", {})}
    _warn_of_global(spec, given)
    if any(each.given for each in changes["streams"]) and loses_samples(spec.dataset):
        warn(
            f"this checkpoint of the dataset {type(spec.dataset).__qualname__} lacks the samples "
            "in the buffer of its shuffle: they do not come in this epoch any more, as with "
            "torchdata itself. If they matter, begin the epoch again. Shuffle by "
            "picklable_loader.ShuffleBuffer from then on"
        )
    return Saved(cursor._replace(epoch=epoch, step=step, next_step=step, **changes), fits)


def _check_kind(spec: Spec, given: TorchdataState) -> None:
    if given.of_datapipe:
        raise refused("It is of a DataPipe, of which it has no state", given.again())
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
    if given.since and (spec.stateful or not spec.known) and not (spec.iterable or given.finished):
        raise refused(
            f"It has the state of the sampler, or of the dataset, {given.since} batches ago",
            "Set its field '_steps_since_snapshot' to 0, load it, and pass over these: "
            f"`it = iter(loader); it.skip({given.since})`",
        )


def _warn_of_global(spec: Spec, given: TorchdataState) -> None:
    """Warn of a dataset that gives a global generator back, from which batches are not drawn."""
    dataset = spec.dataset
    own = {"dataset", "iterator"} if hasattr(dataset, "__next__") else {"dataset"}
    if not (spec.stateful and own & given.random):
        return
    if given.finished and given.workers and not spec.lives_on:  # new workers are given no state
        return
    if not any(True for _ in owned_in({"dataset": dataset}, ids_of_global())):
        warn(
            f"the dataset {type(dataset).__qualname__} has saved the state of a random generator, "
            "and has none of its own: it is the global one, it seems, as torch.get_rng_state() "
            "gives it. This loader seeds the global generators by itself, so the batches have "
            "other random numbers than torchdata's. If they matter, finish the epoch with "
            "torchdata. Then remove that state from state_dict, as this loader does not need it"
        )


def _unlike(name: str, expected: str, found: str) -> StateMismatch:
    advice = "Give this loader the dataset and the sampler that torchdata's had."
    return StateMismatch([Difference(name, expected, found)], advice)


def _not_at_its_end(whose: str) -> ForeignStateError:
    return refused(
        f"The epoch is over, and the state of the {whose} is that of the last batch: it may be "
        "another one when the next epoch begins",
        "Set its field '_iterator_finished' to False, and load it with at_epoch_end=\"next\"",
    )


# --- the order -----------------------------------------------------------------------------------


def _grouping(spec: Spec, given: TorchdataState) -> dict[str, Any]:
    """The part of the fingerprint that the state shows: how torchdata's loader made its batches."""
    size, drawn, samples = spec.grouping.batch_size, given.drawn, given.samples
    if samples is None:  # there was no BatchSampler of torchdata's
        found = given.sampler_iterator if given.sampler is None else given.sampler
        if found is not None and spec.grouping.unit is Unit.SAMPLE_OF_BATCH:
            raise DamagedStateError("_sampler_iter_state", "that of a BatchSampler", found)
        return {"batches_from": Unit.SAMPLE.value} if spec.iterable else {}
    fits: dict[str, Any] = {"batches_from": Unit.SAMPLE_OF_BATCH.value}
    length = spec.length() if spec.known else None
    last = (drawn - 1) * size < samples < drawn * size and samples == (length or samples)
    if samples != drawn * size and not last and not given.finished:
        if not drawn:
            raise DamagedStateError("samples_yielded", "0, as there was no batch", samples)
        fits["batch_size"] = -(-samples // drawn)
    elif length is not None and samples > length:
        fits["sampler_length"] = samples  # at least
    return fits


def _position(spec: Spec, given: TorchdataState, size: int) -> int:
    """The position in map-style data, in batches of that size."""
    if given.workers and given.drawn != given.delivered and not given.finished:
        raise _not_in_turn(given)
    length = sys.maxsize if (length := spec.length()) is None else length
    samples = min(given.drawn * size, length) if given.samples is None else given.samples
    return max(samples, min(samples + given.since * size, length))


def _of_known(spec: Spec, source: Source, given: TorchdataState, position: int) -> dict[str, Any]:
    """Fields of the cursor, for a sampler that has an order of ours."""
    sampler, state, random = spec.sampler, given.sampler, random_sampler(given)
    if isinstance(sampler, DistributedSampler) and is_record(state, "distributed"):
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
            given.again(),
        )
    return _of_random(spec, source, given, *random)


def _of_random(
    spec: Spec, source: Source, given: TorchdataState, yielded: int, generator: torch.Generator
) -> dict[str, Any]:
    """The same for a RandomSampler that has given so many indices since its generator was so."""
    own, length = spec.sampler.generator, _chunk_length(spec.sampler)
    shared = own is not None and own is spec.generator
    if shared and (given.of_0_10 or (not given.workers and spec.sampler.num_samples > length)):
        raise refused(
            "torchdata has saved its generator before the base seed was drawn from it, and itself "
            "goes on with another order. Expected a RandomSampler whose generator is not the "
            "loader's",
            "Finish the epoch with torchdata, without a restart",
        )
    begun: dict[str, Any] = {}
    if given.finished:
        _pass_epoch(spec, given, generator)
        if shared:  # the base seed is drawn before that order, and not again when it begins
            lives_on = given.workers and spec.lives_on
            seed = next_base_seed(given.base_seed) if lives_on else random_int64(generator)
            begun = {"base_seed": seed}
    elif yielded != (samples := given.drawn if given.samples is None else given.samples):
        raise DamagedStateError("yielded", f"{samples}, as samples_yielded", yielded)
    order = {
        "generator": generator_to_text(generator),
        "chunks": spec.sampler.num_samples // length + 1,
    }
    if own is None or source.seed is not None:
        return {"order": order}
    _pass_epoch(spec, given, generator)
    name = "loader" if shared else "sampler"
    if own is torch.default_generator:
        name = "torch"
    return {"order": order, "rng": {name: generator_to_text(generator)}, **begun}


def _chunk_length(sampler: RandomSampler) -> int:
    return 32 if sampler.replacement else max(1, len(sampler.data_source))


def _pass_epoch(spec: Spec, given: TorchdataState, generator: torch.Generator) -> None:
    """Draw what its sampler draws from its generator until the next epoch's order."""
    sampler, length = spec.sampler, _chunk_length(spec.sampler)
    whole, rest = divmod(sampler.num_samples, length)
    opens_twice = bool(given.workers) and not spec.lives_on and not given.of_0_10
    chunks = [length] * whole
    chunks += [rest] if given.of_0_10 else [length] * (bool(rest) + opens_twice)
    size = max(1, len(sampler.data_source))
    for count in chunks:
        if sampler.replacement:
            torch.randint(size, (count,), generator=generator)
        else:
            torch.randperm(size, generator=generator)


def _of_custom(spec: Spec, source: Source, given: TorchdataState, position: int) -> dict[str, Any]:
    """Fields of the cursor, for anybody's sampler: the states that it has itself."""
    name, own, iterator = type(spec.sampler).__qualname__, given.sampler, given.sampler_iterator
    if own is not None and not is_stateful(spec.sampler):
        raise _unlike("sampler", f"{name}, without state_dict", "one that has a state")
    passes_over = isinstance(spec.sampler, DistributedSampler)  # torchdata's own, what it has given
    attributes = changed(spec.attributes(), source.origin)
    if is_stateful(spec.sampler):  # its state has all but what set_epoch has set
        attributes = {path: form for path, form in attributes.items() if path == "epoch"}
    if given.finished and passes_over:
        return {"sampler": {"attributes": attributes}}
    if own is None and (is_stateful(spec.sampler) or (iterator is None and not given.finished)):
        raise refused(f"It has no state of the sampler {name}", given.again())
    forms = {
        "sampler_state": form_of(own, "state_dict() of the sampler"),
        "iterator_state": form_of(iterator, "state_dict() of the sampler's iterator"),
    }
    forms = {field: form for field, form in forms.items() if form is not None}
    if len(forms) == 2 and not alike(*forms.values()):  # the sampler is not its own iterator
        raise refused(
            f"The sampler {name} and its iterator have states of their own", given.again()
        )
    partial = given.samples is not None and given.samples % spec.grouping.batch_size > 0
    if given.finished:
        if own is not None and given.workers and not partial:
            raise _not_at_its_end(f"sampler {name}")
        state = {} if own is None else {"state": forms["sampler_state"]}
        return {"sampler": {**state, "attributes": attributes}}
    order = {"opens": 1, "taken": position, "ended": partial and not passes_over, **forms}
    return {"sampler": {}, "order": {**order, "sampler": attributes}}


# --- streams -------------------------------------------------------------------------------------


def _stream_states(spec: Spec, given: TorchdataState) -> list[dict[str, Any]]:
    """The streams' states. Hugging Face's datasets save what is their iterators' here."""
    has_dataset = any("dataset" in state for state in given.states)
    if has_dataset and not spec.stateful:
        kind = f"{type(spec.dataset).__qualname__}, without state_dict"
        raise _unlike("dataset", kind, "one that has a state")
    if not is_hugging_face(spec.dataset):
        return [*given.states]
    names = {"dataset": "iterator", "iterator": "iterator", "over": "over"}
    return [{names[name]: value for name, value in state.items()} for state in given.states]


def _next_streams(spec: Spec, given: TorchdataState) -> tuple[StreamPosition, ...]:
    """The streams of the next epoch, if the one that is over has left a dataset that has a state.

    New workers have new copies of it. Hugging Face's states are of one iteration.
    """
    states = _stream_states(spec, given)
    if (given.workers and not spec.lives_on) or is_hugging_face(spec.dataset):
        return ()
    if spec.stateful and not any(state.keys() - {"over"} for state in states):
        raise refused("It has no state of the dataset", given.again())
    if given.workers and any("dataset" in state and "over" not in state for state in states):
        raise _not_at_its_end(f"dataset {type(spec.dataset).__qualname__}")
    return tuple(StreamPosition(state={**state, "over": True}) for state in states if spec.streamed)


def _streams(spec: Spec, given: TorchdataState) -> tuple[StreamPosition, ...]:
    """The positions of the streams in this epoch."""
    states, counts, later = _stream_states(spec, given), _delivered(given), [0] * len(given.states)
    turns = sorted(_running(given), key=lambda at: (at <= given.last_worker, at))
    if given.since and not turns:
        raise DamagedStateError("_steps_since_snapshot", "0, as all have ended", given.since)
    for number, at in enumerate(turns):
        later[at] = len(range(number, given.since, len(turns)))
    for at, state in enumerate(states):
        if counts[at] and not state.keys() - {"over"}:
            whose = f"the dataset {type(spec.dataset).__qualname__} in stream {at}"
            raise refused(f"It has no state of {whose}", given.again())
    return tuple(
        StreamPosition(count + more, "over" in state, state or None, count)
        for count, more, state in zip(counts, later, states, strict=True)
    )


def _running(given: TorchdataState) -> list[int]:
    return [at for at, state in enumerate(given.states) if "over" not in state]


def _delivered(given: TorchdataState) -> list[int]:
    """By stream, the batches that were delivered from it by the snapshot.

    Torchdata counts them together. Only the sum of the streams that have ended matters: the others
    take turns after the one that gave the newest.
    """
    streams, last, count = len(given.states), given.last_worker, given.delivered
    running = _running(given)
    if not count:
        return [0] * streams
    rounds, rest = divmod(count - sum(at <= last for at in running), max(1, len(running)))
    counts = [rounds + (at <= last) if at in running else 0 for at in range(streams)]
    if len(running) < streams and rounds >= 0:
        counts[min({*range(streams)} - {*running})] += count - sum(counts)
    elif rest or rounds < 0 or given.drawn != count:
        raise _not_in_turn(given)
    return counts


def _not_in_turn(given: TorchdataState) -> ForeignStateError:
    return refused(
        f"{given.drawn} batches were drawn, and {given.delivered} were delivered, the newest by "
        f"worker {given.last_worker}. These are not those of {given.workers} workers in turn: some "
        "have ended (batch_size=None), a batch has raised, or in_order=False",
        given.again(),
    )
