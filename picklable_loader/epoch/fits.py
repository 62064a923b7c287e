"""Whether a saved state belongs to a loader; its position for other ranks and batch sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from ..core.cursor import Cursor, Saved, is_beginning
from ..core.fields import ITERABLE
from ..core.plan import Grouping, Unit, batches_in
from ..core.shard import Shard, StreamShare
from ..core.snapshot import differences, spacing
from ..errors import Difference, StateMismatch, warn
from ..orders.attribute_rngs import ATTRIBUTE_RNGS
from ..orders.torch_samplers import reshared
from .spec import Spec

#: May differ under strict=False: the position in the order still has a meaning.
_BRIDGED = {
    *("drop_last", "seeding", "seed_dataset", "seed", "num_workers"),
    *("sampler_seed", "generators"),
}


def fit(saved: Saved, spec: Spec, strict: bool) -> Saved:
    """The cursor of a state, checked against a loader's fingerprint, so that it fits.

    ``strict=False`` bridges differences where the position still has a meaning.

    Raises:
        StateMismatch: see `DataLoader.load_state_dict`.
    """
    expected = spec.fingerprint(_streams_of(saved.cursor, spec))
    saved = _reshared(saved, spec, expected)
    cursor, found = saved
    cursor = _of_this_rank(cursor, strict, spec)
    unlike = [*differences(expected, found), *_other_generators(saved, spec)]
    if not unlike:
        return Saved(cursor, found)
    left = [each for each in unlike if not _is_immaterial(each, cursor, expected, strict)]
    left = [each for each in left if not _is_bridged(each, saved, expected, strict)]
    if left:
        by_batch = expected["batches_from"] == Unit.BATCH.value
        if cursor.num_streams is not None and {each.name for each in left} == {"shard_tail"}:
            raise StateMismatch(left, _SOME_STREAMS)
        lenient = strict and all(_is_bridged(each, saved, expected, False) for each in left)
        raise StateMismatch(left, _advice(left, lenient, by_batch))
    if spacing(expected) != spacing(found) and not cursor.streams:
        steps = _steps(cursor.position, spec.length(cursor), expected)
        cursor = cursor._replace(step=steps, next_step=steps)
    if any(each.name in ("world_size", "shard_tail") for each in unlike):
        cursor = cursor._replace(again={})  # other ranks have other streams to read again
    if _in_sequence(cursor) and any(each.name == "dataset_length" for each in unlike):
        cursor = cursor._replace(order=None)  # it goes on to the end of the data at hand
    if any(each.name in ("seeding", "num_workers") for each in unlike):
        cursor = cursor._replace(workers={})
    fits = dict(expected)
    if expected["seed"] is None and spec.shared:
        fits["seed"] = found.get("seed")  # ranks that have not agreed on one take the state's
    return Saved(cursor, fits)


def _other_generators(saved: Saved, spec: Spec) -> list[Difference]:
    """The difference between the generators that a state has and those that the loader was given.

    A custom sampler may have one in the middle of an epoch only; its attributes are saved anyway.
    """
    if spec.shared or spec.options.seed is not None or saved.fits.get("seed") is not None:
        return []  # none of them decides anything
    counted = {"loader", "sampler"} if spec.known else {"loader"}
    names = {id(each): name for name, each in reversed(spec.generators.items())}
    here, there = counted.intersection(names.values()), counted & saved.cursor.rng.keys()
    if here == there:
        return []
    return [Difference("generators", sorted(here), sorted(there))]


def _streams_of(cursor: Cursor, spec: Spec) -> int | None:
    """The streams of all ranks in a state; None: it has none, or is damaged."""
    streams = len(cursor.streams)
    total = streams if cursor.num_streams is None else cursor.num_streams
    return total if 0 < total <= (streams + 1) * spec.shard.world else None


def _reshared(saved: Saved, spec: Spec, expected: dict[str, Any]) -> Saved:
    """A DistributedSampler's state as one of this number of ranks; any other state as it is.

    All of its ranks had taken as many indices of one permutation, so that each of any number of
    ranks can go on from there, with batches of any size. A state that holds more than that is left
    as it is: batches drawn and not delivered, states of a dataset or of workers' generators.
    """
    cursor, found = saved
    was = _DISTRIBUTED.fullmatch(str(found.get("sampler")))
    whole = not cursor.window and not cursor.streams and expected["seeding"] != "worker"
    if was is None or not spec.is_distributed or not whole:
        return saved
    sampler, replicas = spec.sampler, int(was["replicas"])
    size = expected["dataset_length"]
    lengths = (size // replicas, -(-size // replicas)) if replicas and size else ()
    if (
        (replicas == sampler.num_replicas and found.get("batch_size") == expected["batch_size"])
        or found["sampler"] != f"{was['kind']}(num_replicas={replicas}, shuffle={sampler.shuffle})"
        or len(sampler.dataset) != size
        or found.get("sampler_length") not in lengths
        or cursor.position > found["sampler_length"]
        or (cursor.position and cursor.order is None)
    ):
        return saved
    if cursor.order is not None:
        order, position = reshared(sampler, replicas, cursor.order, cursor.position)
        cursor = cursor._replace(order=order, position=position)
        steps = _steps(position, spec.length(cursor), expected)
        cursor = cursor._replace(step=steps, next_step=steps)
    taken = ("sampler", "sampler_length", "batch_size")
    return Saved(cursor, {**found, **{name: expected[name] for name in taken}})


#: a DistributedSampler in a fingerprint
_DISTRIBUTED = re.compile(r"(?P<kind>[^(]+)\(num_replicas=(?P<replicas>[0-9]{1,9}), shuffle=\w+\)")


def own_streams(spec: Spec, saved: Saved) -> Saved:
    """A cursor that fits, without the streams of other ranks; one without these as it is.

    Raises:
        StateMismatch: there are more ranks than streams.
    """
    cursor, shard = saved.cursor, spec.shard
    if not spec.iterable or cursor.rank is not None or not cursor.streams or shard.world == 1:
        return saved
    share = StreamShare(shard, len(cursor.streams))
    if share.total < shard.world:
        unlike = Difference("num_streams", f"{shard.world} at least", share.total)
        raise StateMismatch([unlike], _FEW_STREAMS)
    again = cursor.again.get(shard.rank, ())
    streams = (*(cursor.streams[number] for number in share.own), *again)
    steps, batches = sum(position.given for position in streams), None
    if spec.equal_batches:
        known = zip(cursor.streams, spec.stream_batches(share.total) or (), strict=True)
        left = share.batches([0 if at.ended else max(0, n - at.given) for at, n in known])
        batches = None if left is None else steps + left
    of_rank = cursor._replace(
        step=steps,
        next_step=steps,
        streams=streams,
        num_streams=share.total,
        again={},
        batches=batches,
        rank=(shard.rank, shard.world),
    )
    return Saved(of_rank, saved.fits)


def _steps(position: int, length: int | None, expected: Mapping[str, Any]) -> int:
    """The step of a position that was reached with another batch size, or on other ranks.

    It is counted from the epoch's end: step and remaining batches then add up to the epoch's.
    """
    if length is None:
        return -(-position // (spacing(expected) or 1))
    shard = Shard(0, expected.get("world_size", 1), expected.get("shard_tail", "pad"))
    grouping = Grouping(Unit.SAMPLE_OF_BATCH, expected["batch_size"], expected["drop_last"], shard)
    return batches_in(length, grouping) - batches_in(max(0, length - position), grouping)


def unlike_its_pickle(loader_fits: Mapping[str, Any], saved: Mapping[str, Any]) -> list[Difference]:
    """The differences between an unpickled loader's fingerprint and the one that it had.

    A pickle holds some of them itself; one of an earlier version has no fingerprint of these.
    """
    held = ("seed_dataset", "sampler_seed")
    unlike = [each for each in differences(loader_fits, saved) if each.name not in held]
    return [each for each in unlike if not _is_same(each)]


def check_fits(loader_fits: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise StateMismatch if a position does not fit the loader any more that it was pickled with.

    These are the fingerprints of the loader as it is now, and as it was pickled.
    """
    unlike = unlike_its_pickle(loader_fits, saved)
    if unlike:
        raise StateMismatch(
            unlike,
            "The loader, its dataset or the code of that has changed since it was pickled, or its "
            "state was loaded. Put back what it was; or build a new loader, and call its "
            "load_state_dict(it.state_dict(), strict=False), which takes what still has a meaning.",
        )


def check_kind(dataset: Any, was: bool) -> None:
    """Raise StateMismatch if a dataset is iterable-style, and was not when its loader was built.

    Or the other way round: the code of its class was changed after it was pickled.
    """
    kinds = {False: "map-style", True: "iterable-style"}
    now = isinstance(dataset, IterableDataset)
    if was != now:
        raise StateMismatch(
            [Difference("dataset", kinds[now], kinds[was])],
            f"The class {type(dataset).__qualname__} has another base than when the loader "
            "was built. dill, for one, loses the base IterableDataset of classes of __main__: "
            "cloudpickle does not.",
        )


def _of_this_rank(cursor: Cursor, strict: bool, spec: Spec) -> Cursor:
    """The position, without what holds for another rank's indices only; see `fit`."""
    here, shared = spec.rank, spec.shared
    if shared and is_beginning(cursor):
        return cursor._replace(rank=here if here[1] > 1 else None)
    there = cursor.rank or (0, 1)
    if here == there or (shared and cursor.rank is None):
        return cursor
    advice = _of_one_rank(cursor, there, here, spec) if strict else None
    if shared:
        advice = _ONE_RANKS if cursor.num_streams is None else _SOME_STREAMS
    if advice is not None:
        raise StateMismatch([Difference("rank", list(here), list(there))], advice)
    midway = not all(position.ended for position in cursor.streams)
    if spec.iterable and midway and here[1] != there[1]:
        warn(_OTHER_WORLD.format(there=_named(there), here=_named(here)))
    order = cursor.order
    if order is not None and not (strict and here[1] != there[1]):
        # Another number of ranks: only a sampler that gives all ranks the same passes it.
        order = {name: value for name, value in order.items() if name != "checksum"}
    return cursor._replace(rank=None, order=order)


def _of_one_rank(
    cursor: Cursor, there: tuple[int, int], here: tuple[int, int], spec: Spec
) -> str | None:
    """Why a state without ``shard=`` is for its own rank only, as advice; None: it is not."""
    tasks = [*cursor.window, *(task for position in cursor.streams for task in position.since)]
    out_of_order = bool(cursor.window) and cursor.rank is not None
    if out_of_order or any(task.indices is not None for task in tasks):
        return _OTHER_RANK
    if cursor.streams and spec.is_distributed and cursor.rank is not None:
        return _OWN_DATA
    order = cursor.order or {}
    if "checksum" not in order or there[1] != here[1]:
        return None
    kinds = {form[0] for form in order.get("sampler", {}).values()}
    return _OWN_DRAWS if order.get("log") or not kinds.isdisjoint(ATTRIBUTE_RNGS) else None


def _named(rank: tuple[int, int]) -> str:
    return f"rank {rank[0]} of {rank[1]}"


_OTHER_WORLD = (
    "this state is of {there}, and this is {here}. If the dataset shares its samples out to the "
    'ranks by itself, some are lost now, or come twice: pass shard="auto" and num_streams= to the '
    "loader, and have the dataset share by get_worker_info() alone. If each rank reads all of "
    "them, ignore this warning"
)
_SAME_SAMPLES = "or pass strict=False if all ranks read the same samples."
_OWN_DATA = (
    "It holds the state that the dataset has on its rank. Save a state on each rank and load it "
    f"there; {_SAME_SAMPLES}"
)
_OWN_DRAWS = (
    "The sampler has drawn from generators, which each rank may have in other states. Save a state "
    f"on each rank and load it there; {_SAME_SAMPLES}"
)
_OTHER_RANK = (
    "It holds batches that its rank has drawn and not delivered. Save a state on each rank and "
    f"load it there; {_SAME_SAMPLES}"
)
_ONE_RANKS = (
    "This state is one rank's: the dataset has a state, batches came out of order "
    '(in_order=False), or shard_tail="uneven" meets a sampler that cannot be sought in. Save a '
    "state on each rank, and load it on the same rank of as many."
)


_FEW_STREAMS = (
    "Each stream is read by one rank. Go on with fewer ranks; or begin the next epoch, and pass "
    "num_streams= to have more streams."
)
_SOME_STREAMS = (
    "This state has the streams of one rank. Load the state of all: merge_states([...]) of those "
    "of all ranks, or what loader.gather_state_dict() gives on each of them."
)
_NOT_SHARED = (
    'The state is one for all ranks that share an order. Pass shard="auto" to the loader; there '
    "may be any number of ranks, 1 included."
)
_BY_BATCH = (
    "A batch_sampler gives whole batches to each rank. Another number of ranks goes on only from a "
    "state of an epoch's beginning. Use batch_size and a sampler, or load it on as many ranks."
)
_OF_SO_MANY = (
    "It holds batches that were drawn for another number of ranks and are not delivered, and the "
    "sampler cannot give them again. Load it on as many ranks; or save it with num_workers=0, or "
    "give the sampler an order that can be sought in (register_order)."
)


_OF_A_DISTRIBUTED_SAMPLER = (
    "A DistributedSampler's state is for ranks that have one with the same dataset and shuffle=. "
    "Their number may be another one: num_replicas=1 for one process, for example."
)
_CUT_FOR_A_DISTRIBUTED_SAMPLER = (
    "This state is for as many ranks as there were: it holds batches that came out of order "
    '(in_order=False), a state of the dataset, or generators of workers (seeding="worker"). Load '
    "it on as many ranks, or begin the next epoch by set_epoch()."
)


def _in_sequence(cursor: Cursor) -> bool:
    """No index was drawn at random, or by a program's own sampler."""
    return cursor.order is None or cursor.order.keys() == {"grown_from"}


def _is_bridged(entry: Difference, saved: Saved, expected: Mapping[str, Any], strict: bool) -> bool:
    cursor, found, name = saved.cursor, saved.fits, entry.name
    # Tasks in the window were cut to the old batch size, and so were the batches that a stream has
    # given; they stay as they are only if the size has not changed.
    uncut = not cursor.window and not cursor.streams
    if "world_size" in expected:
        if name == "seed" and entry.expected is None:
            return True
        if name in ("world_size", "shard_tail", "batch_size"):
            if expected["sampler"] == ITERABLE and cursor.streams:
                return name != "batch_size" and cursor.rank is None and "world_size" in found
            if expected["world_size"] == found.get("world_size", 1) and name != "batch_size":
                return True
            if expected["batches_from"] == Unit.BATCH.value:
                return uncut and cursor.next_step == 0  # the order is counted in steps
            return uncut or (not cursor.streams and spacing(expected) == spacing(found))
    if strict:
        return False
    if name == "batch_size":
        return uncut
    if name in ("dataset_length", "sampler_length", "sampler_checksum", "source_length"):
        return _in_sequence(cursor)  # or its epoch is yet to begin
    return name in _BRIDGED


def _is_same(entry: Difference) -> bool:
    """A class under the name that a codec gives it, or a checksum that is not compared any more."""
    if entry.name in ("sampler", "dataset"):  # cloudpickle makes "make.<locals>.Mine" a "Mine"
        there, here = (str(name).rpartition(".")[2] for name in (entry.found, entry.expected))
        return there == here
    # Earlier versions saved it for a sampler whose own code may change what it is of.
    return entry.name == "sampler_checksum" and entry.expected is None


def _is_immaterial(
    entry: Difference, cursor: Cursor, expected: Mapping[str, Any], strict: bool
) -> bool:
    """A length that only one of the two knows, or that no position depends on."""
    if _is_same(entry):
        return True
    if entry.name == "source_length":  # earlier versions did not save it
        as_long = expected["sampler_length"] == expected["dataset_length"]
        return entry.found is None and not as_long and "num_replicas" not in expected["sampler"]
    if entry.name == "sampler_seed":  # in mid-epoch the order has it, also in earlier states
        return cursor.order is not None and cursor.order.get("seed") == entry.expected
    if entry.name == "dataset_length" and expected["sampler"] == ITERABLE:
        # "pad" and "drop" ask for it on several ranks only; a beginning is in no stream
        return None in (entry.expected, entry.found) or not (strict and cursor.streams)
    return False


def _advice(left: list[Difference], lenient: bool, by_batch: bool) -> str:
    names = {entry.name for entry in left}
    if names <= {"world_size", "shard_tail"}:
        if left[0].expected is None:
            return _NOT_SHARED
        return _BY_BATCH if by_batch else _OF_SO_MANY
    for each in left:
        was = _DISTRIBUTED.fullmatch(str(each.found)) if each.name == "sampler" else None
        now = was and _DISTRIBUTED.fullmatch(str(each.expected))
        if was and not now:
            return _OF_A_DISTRIBUTED_SAMPLER
        if was and now and was["replicas"] != now["replicas"]:
            return _CUT_FOR_A_DISTRIBUTED_SAMPLER
    if names == {"sampler_checksum"}:
        return (
            "The sampler has other indices or weights than when the state was saved. Make them "
            "from a fixed seed, or save them beside the state. If its set_epoch() makes them, call "
            "loader.set_epoch(epoch) first, with the state's epoch."
        )
    if lenient and all(entry.name in (*_BRIDGED, "batch_size") for entry in left):
        return (
            "Build the loader as it was when the state was saved, or pass strict=False to go on "
            "from the same sample."
        )
    return "Build the loader as it was when the state was saved."
