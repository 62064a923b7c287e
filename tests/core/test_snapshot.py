"""The saved form: round trips, and nothing but named errors from anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picklable_loader.core.cursor import Cursor, sees_worker_info
from picklable_loader.core.snapshot import VERSION, differences, from_plain, spacing, to_plain
from picklable_loader.core.streams import StreamPosition
from picklable_loader.core.task import Task
from picklable_loader.errors import (
    DamagedStateError,
    Difference,
    ForeignStateError,
    NewerStateError,
    StateError,
)
from picklable_loader.rng.text import pack_words, unpack_words

GOOD = Cursor(2, 5, 9, 36, (Task(6, [1, 2], 24), Task(8, [3], 32)), 77, {"seed": 3})

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def test_a_cursor_survives() -> None:
    assert from_plain(to_plain(GOOD, {"seed": 1})) == (GOOD, {"seed": 1})
    assert to_plain(GOOD, {})["version"] == 1


@given(st.sampled_from(sorted(to_plain(GOOD, {}))), ANYTHING)
def test_a_field_with_any_other_value_is_taken_or_named(field: str, value: Any) -> None:
    try:
        from_plain({**to_plain(GOOD, {}), field: value})
    except StateError as error:
        assert str(error)


@pytest.mark.parametrize("field", [f for f in to_plain(GOOD, {}) if f not in ("format",)])
def test_a_missing_field_is_damage_unless_it_may_be_empty(field: str) -> None:
    state = {name: value for name, value in to_plain(GOOD, {}).items() if name != field}
    if field in ("base_seed", "order", "announced"):
        from_plain(state)
    else:
        with pytest.raises(DamagedStateError, match=field):
            from_plain(state)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40, unique_by=lambda e: e[0]),
    st.integers(1, 5),
)
def test_a_window_survives_and_runs_of_it_are_short(
    entries: list[tuple[int, bool]], batch_size: int
) -> None:
    window = tuple(
        Task(step, [step] if has_indices else None, step * batch_size)
        for step, has_indices in sorted(entries)
    )
    cursor = Cursor(0, 0, 100, 100 * batch_size, window)
    fits = {"batch_size": batch_size}
    plain = to_plain(cursor, fits)
    assert from_plain(plain) == (cursor, fits)
    steps = [task.step for task in window if task.indices is None]
    runs = sum(step - 1 not in steps for step in steps)
    assert len(plain["window"]) == runs + len(window) - len(steps)


def test_tasks_whose_positions_are_not_as_far_apart_as_their_steps_survive() -> None:
    window = tuple(Task(step, None, at) for step, at in [(3, 12), (4, 16), (5, 19), (7, 28)])
    cursor = Cursor(0, 0, 9, 36, window)
    assert from_plain(to_plain(cursor, {"batch_size": 4})) == (cursor, {"batch_size": 4})


def test_the_longest_window_survives_and_a_longer_one_is_damage() -> None:
    state = to_plain(Cursor(next_step=2 * 10**5), {"batch_size": None})
    most = {**state, "window": [[0, 0, None, 10**5]]}
    assert len(from_plain(most)[0].window) == 10**5
    with pytest.raises(DamagedStateError, match="window"):
        from_plain({**state, "window": [[0, 0, None, 10**5], [10**5, 10**5, None, 1]]})


@pytest.mark.parametrize("count", [-1, "2", 1.5, 10**7, 2**40, None])
def test_a_window_of_an_impossible_count_is_damage(count: Any) -> None:
    state = {**to_plain(Cursor(next_step=2**50), {}), "window": [[3, 3, None, count]]}
    with pytest.raises(DamagedStateError, match="window"):
        from_plain(state)


@pytest.mark.parametrize(
    "field, largest",
    [("epoch", 2**62 - 1), ("base_seed", 2**63 - 1), ("worker_seed", 2**63 - 1)],
)
def test_numbers_that_no_run_comes_near_are_damage(field: str, largest: int) -> None:
    state = to_plain(GOOD, {})
    assert getattr(from_plain({**state, field: largest})[0], field) == largest
    with pytest.raises(DamagedStateError, match=field):
        from_plain({**state, field: largest + 1})


def test_the_rank_that_wrote_a_state_survives() -> None:
    for rank in (0, 3):
        cursor = GOOD._replace(rank=(rank, 4))
        assert from_plain(to_plain(cursor, {})) == (cursor, {})


@pytest.mark.parametrize(
    "rank", [[], [0], [0, 1, 2], [0.0, 1], [True, 2], [-1, 2], [2, 2]], ids=str
)
def test_a_rank_that_is_not_below_the_number_of_ranks_is_damage(rank: list[Any]) -> None:
    with pytest.raises(DamagedStateError, match="rank"):
        from_plain({**to_plain(GOOD, {}), "rank": rank})


@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("draws_as", [None, "workers"])
def test_it_survives_whether_streams_see_torchs_worker_information(
    draws_as: str | None, sees: bool
) -> None:
    cursor = GOOD._replace(worker_info=sees, draws_as=draws_as)
    plain = to_plain(cursor, {})
    assert sees_worker_info(from_plain(plain)[0]) is sees
    assert ("worker_info" in plain) is (sees != bool(draws_as)), "only where it is not usual"


def test_the_epoch_of_the_next_pass_survives() -> None:
    counted = GOOD._replace(next_epoch=7, counted=True)
    for cursor in (GOOD._replace(next_epoch=0), GOOD._replace(next_epoch=7), counted):
        assert from_plain(to_plain(cursor, {})) == (cursor, {})
    with pytest.raises(DamagedStateError, match="next_epoch"):
        from_plain({**to_plain(GOOD, {}), "next_epoch": -1})


def test_a_part_of_the_streams_names_its_rank() -> None:
    part = GOOD._replace(rank=(1, 3), num_streams=7, batches=12)
    assert from_plain(to_plain(part, {}))[0] == part
    with pytest.raises(DamagedStateError, match="num_streams"):
        from_plain(to_plain(part._replace(rank=None), {}))


def test_the_streams_that_ranks_read_again_survive_in_a_merged_state() -> None:
    again = {0: (StreamPosition(2, True, None, 0),), 2: (StreamPosition(), StreamPosition(1))}
    merged, fits = GOOD._replace(again=again), {"world_size": 3}
    plain = to_plain(merged, fits)
    assert from_plain(plain)[0] == merged
    assert "again" not in to_plain(GOOD, fits)
    with pytest.raises(DamagedStateError, match="again"):
        from_plain(to_plain(merged._replace(rank=(1, 3), num_streams=7), fits))
    for damaged in ({"3": []}, {"01": []}, {"-1": []}, {"x": []}, {"1": {}}, {"1": [3]}, []):
        with pytest.raises(DamagedStateError, match="again"):
            from_plain({**plain, "again": damaged})
    with pytest.raises(DamagedStateError, match="again"):
        from_plain({**plain, "fits": {}})
    many = {**plain, "fits": {"world_size": 10**10}}
    assert 10**9 - 1 in from_plain({**many, "again": {str(10**9 - 1): []}})[0].again
    with pytest.raises(DamagedStateError, match="again"):
        from_plain({**many, "again": {str(10**9): []}})


def test_each_property_in_which_two_loaders_differ_is_named_once() -> None:
    expected, found = {"seed": 1, "batch_size": 2, "same": 0}, {"same": 0, "seed": 3, "sampler": 4}
    assert differences(expected, found) == [
        Difference("seed", 1, 3),
        Difference("batch_size", 2, None),
        Difference("sampler", None, 4),
    ]
    assert differences({"sampler_seed": 3}, {}) == [Difference("sampler_seed", 3, 0)]


# --- damage, field by field ----------------------------------------------------------------------


def full() -> dict[str, Any]:
    """A state that has each record: 5 of 9 steps were delivered, and 2 are in the window."""
    state = to_plain(GOOD, {"batch_size": 4, "world_size": 3})
    stream = {"given": 9, "ended": False, "mark": {"rng": {}}, "marked": 5, "since": []}
    return {
        **state,
        "streams": [{**stream, "since": [[3, 12, None, 4]]}],
        "again": {"1": [{**stream, "marked": 9}]},
        "feedback": {"budget": 2, "heard": 3, "notes": [[3, []], [4, []]], "newest": 4},
        "workers": {"0": {}},
        "sampler": {"attributes": {"seed": ["int", 3]}},
        "program": {},
    }


def with_value(state: Any, path: str, value: Any) -> Any:
    """The state with another value at ``streams/0/given``, for example."""
    if not path:
        return value
    name, _, rest = path.partition("/")
    if isinstance(state, list):
        at = int(name)
        return [*state[:at], with_value(state[at], rest, value), *state[at + 1 :]]
    return {**state, name: with_value(state.get(name, {}), rest, value)}


def damaged_field(state: dict[str, Any], live: bool = False) -> str:
    with pytest.raises(DamagedStateError) as caught:
        from_plain(state, live)
    return caught.value.field


BUDGET, NEWEST, NOTES = "feedback/budget", "feedback/newest", "feedback/notes"
WINDOW = [[6, 24, [1, 2]], [8, 32, [3]]]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    "path, good, bad, field",
    [
        ("version", 1, 0, "version"),
        ("version", 1, True, "version"),
        ("version", 1, -1, "version"),
        ("epoch", 0, -1, "epoch"),
        ("epoch", 2**62 - 1, 2**62, "epoch"),
        ("window", WINDOW, [[6, 24, [1]], [6, 24, [1]]], "window"),
        ("window", WINDOW, [[9, 36, [1]]], "window"),
        ("window", WINDOW, [[6, 24]], "window[0]"),
        ("window", WINDOW, [3], "window[0]"),
        ("window/0/0", 0, -1, "window[0].step"),
        ("window/0/1", 0, -1, "window[0].position"),
        ("window/0/1", 2**62 - 1, 2**62, "window[0].position"),
        ("window/1", [7, 28, None, 2], [7, 28, None, 3], "window[1]"),
        ("window/1", [7, 28, None, 2, 1], [7, 28, None, 2, 0], "window[1]"),
        ("window/1", [7, 28, None, 1], [7, 28, [5], 1], "window[1]"),
        ("window/1", [7, 28, None, 1], [7, 28, None, -1], "window[1].count"),
        ("window/1", [7, 28, None, 2, 1], [7, 28, None, 2, -1], "window[1].apart"),
        ("step", 7, 8, "step"),
        ("streams/0/marked", 5, 6, "streams[0].marked"),
        ("streams/0/marked", 0, -1, "streams[0].marked"),
        ("streams/0/given", 9, 8, "streams[0].marked"),
        ("streams/0/given", 9, -1, "streams[0].given"),
        ("streams/0/since", [[5, 20, None, 4]], [[5, 20, None, 5]], "window[0]"),
        ("streams/0/since", [[8, 32, [1]]], [[9, 36, [1]]], "streams[0].since"),
        ("again/2", [], [3], "again.2[0]"),
        ("fits/world_size", 2, 1, "again"),
        (BUDGET, 1, 0, "feedback.budget"),
        (BUDGET, 10**5, 10**5 + 1, "feedback.budget"),
        ("feedback/heard", 0, -1, "heard"),
        (NEWEST, -1, -2, "feedback.newest"),
        (NEWEST, 4, 5, "feedback.newest"),
        (NOTES, [[0, []], [4, []]], [[-1, []], [4, []]], "feedback.notes"),
        (NOTES, [[0, []], [4, []]], [[0, []], [5, []]], "feedback.notes"),
        (NOTES, [[0, []], [4, []]], [[4, []], [0, []]], "feedback.notes"),
        (NOTES, [[0, []], [4, []]], [[4, []], [4, []]], "feedback.notes"),
        (NOTES, [[1, []]], [[True, []]], "feedback.notes"),
        (NOTES, [[1, []]], [[1, {}]], "feedback.notes"),
        (NOTES, [[1, []]], [1], "feedback.notes"),
        ("draws_as", "workers", "torch", "draws_as"),
        ("draws_as", "persistent_workers", "Workers", "draws_as"),
    ],
    ids=str,
)
def test_a_value_just_beyond_what_is_ever_written_is_damage(
    path: str, good: Any, bad: Any, field: str, live: bool
) -> None:
    from_plain(with_value(full(), path, good), live)
    assert damaged_field(with_value(full(), path, bad), live) == field


@pytest.mark.parametrize(
    "path, bad, expected, found",
    [
        ("step", 8, "at most 7", 8),
        (NEWEST, 5, "from -1 to 4", 5),
        ("streams/0/marked", 6, "at most 5", 6),
        ("window/1", [7, 28, None, 3], "null and a count of tasks below next_step", [None, 3]),
    ],
)
def test_the_error_names_the_last_value_that_is_good_and_the_one_that_is_there(
    path: str, bad: Any, expected: str, found: Any
) -> None:
    with pytest.raises(DamagedStateError) as caught:
        from_plain(with_value(full(), path, bad))
    assert (caught.value.expected, caught.value.found) == (expected, found)


@pytest.mark.parametrize(
    "path, bad, field",
    [
        ("streams", {}, "streams"),
        ("streams/0", [], "streams[0]"),
        ("streams/0/ended", 1, "streams[0]"),
        ("streams/0/since", {}, "streams[0]"),
        ("again/1", {}, "again.1"),
        ("feedback/notes", None, "feedback"),
        ("feedback/newest", "4", "feedback.newest"),
        ("rank", [0], "rank"),
    ],
    ids=str,
)
def test_damage_in_a_pickle_is_named_as_well(path: str, bad: Any, field: str) -> None:
    assert damaged_field(with_value(full(), path, bad), live=True) == field


@pytest.mark.parametrize(
    "record, field",
    [
        ("", ""),
        ("sampler/", "sampler."),
        ("rng/", "rng."),
        ("fits/", "fits."),
        ("program/", "program."),
        ("feedback/", "feedback."),
        ("workers/0/", "workers.0."),
        ("streams/0/", "streams[0]."),
        ("streams/0/mark/", "streams[0].mark."),
        ("streams/0/mark/rng/", "streams[0].mark.rng."),
        ("again/1/0/", "again.1[0]."),
    ],
)
def test_a_field_that_no_record_has_is_damage_and_its_name_is_cut(record: str, field: str) -> None:
    from_plain(full())
    assert damaged_field(with_value(full(), f"{record}new", 1)) == f"{field}new"
    assert damaged_field(with_value(full(), record + 300 * "x", 1)) == (field + 300 * "x")[:200]


@pytest.mark.parametrize(
    "path, bad, field",
    [
        ("step", "5", "step"),
        ("rng", [], "rng"),
        ("rng/torch", 3, "rng.torch"),
        ("fits/seed", "1", "fits.seed"),
        ("sampler/attributes", [], "sampler.attributes"),
        ("sampler/attributes/seed", 3, "sampler.attributes.seed"),
        ("sampler/attributes/seed", ["int"], "sampler.attributes.seed"),
        ("sampler/attributes/seed", ["int", 3, 3], "sampler.attributes.seed"),
        ("sampler/attributes/seed", [3, 3], "sampler.attributes.seed"),
        (f"sampler/attributes/{300 * 'x'}", 3, f"sampler.attributes.{181 * 'x'}"),
        ("workers/0", [], "workers.0"),
        (f"workers/{300 * 'x'}", [], f"workers.{192 * 'x'}"),
        (f"workers/{300 * 'x'}/new", 3, f"workers.{192 * 'x'}"),
        (f"workers/{300 * 'x'}/torch", 3, f"workers.{192 * 'x'}torch"),
        ("streams/0", [], "streams[0]"),
        ("again/1", {}, "again.1"),
        (f"again/{300 * 'x'}", {}, f"again.{194 * 'x'}"),
        ("streams/0/mark/rng", [], "streams[0].mark.rng"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_each_record_is_checked_before_anything_is_made_of_it(
    path: str, bad: Any, field: str
) -> None:
    assert damaged_field(with_value(full(), path, bad)) == field


@pytest.mark.parametrize(
    "fits, samples",
    [
        ({}, 1),
        ({"batch_size": None, "world_size": 3}, 3),
        ({"batch_size": 8, "world_size": 4}, 32),
        ({"batch_size": 8}, 8),
        ({"batch_size": 0}, None),
        ({"batch_size": True}, None),
        ({"batch_size": 8, "world_size": 0}, None),
        ({"batch_size": 8, "world_size": "4"}, None),
    ],
    ids=str,
)
def test_a_step_takes_a_batch_of_each_rank_unless_the_fingerprint_is_damaged(
    fits: dict[str, Any], samples: int | None
) -> None:
    assert spacing(fits) == samples
    runs = {**to_plain(GOOD, {}), "window": [[7, 28, None, 2]], "fits": fits}
    if samples is None:
        assert damaged_field(runs, live=True) == "window[0]"
    else:
        assert [task.position for task in from_plain(runs)[0].window] == [28, 28 + samples]


# --- the streams ---------------------------------------------------------------------------------


def with_stream(**fields: Any) -> dict[str, Any]:
    """A state of 14 steps and of one stream, which has given 9 batches."""
    stream = {"given": 9, "ended": False, "mark": None, "marked": 0, "since": [], **fields}
    return {**to_plain(Cursor(step=14, next_step=14), {"batch_size": None}), "streams": [stream]}


def test_the_tasks_of_a_stream_since_its_state_are_below_the_next_step() -> None:
    [position] = from_plain(with_stream(since=[[10, 10, None, 4]]))[0].streams
    assert [task.step for task in position.since] == [10, 11, 12, 13]
    with pytest.raises(DamagedStateError, match="next_step"):
        from_plain(with_stream(since=[[10, 10, None, 5]]))
    with pytest.raises(DamagedStateError, match="since"):
        from_plain(with_stream(since=[[14, 14, [5]]]))


def test_fields_of_a_stream_and_of_its_state_that_are_never_written_are_damage() -> None:
    for fields, name in ({"new": 1}, r"streams\[0\]\.new"), ({"mark": {"new": 1}}, "mark.new"):
        with pytest.raises(DamagedStateError, match=name):
            from_plain(with_stream(**fields))


# --- other versions, other loaders ---------------------------------------------------------------


def test_a_later_version_asks_for_an_upgrade() -> None:
    with pytest.raises(NewerStateError, match="upgrade"):
        from_plain({**to_plain(GOOD, {}), "version": VERSION + 1})


@pytest.mark.parametrize(
    "state", [{"epoch": 1}, {**to_plain(GOOD, {}), "format": "other"}, [], None, 3, "state"]
)
def test_what_is_no_state_is_foreign(state: Any) -> None:
    with pytest.raises(ForeignStateError):
        from_plain(state)


def test_a_state_with_some_fields_of_torchdatas_names_it() -> None:
    with pytest.raises(ForeignStateError, match=r"torchdata's.*exactly the fields of torchdata"):
        from_plain({"_snapshot": {}, "_steps_since_snapshot": 0})
    with pytest.raises(ForeignStateError, match="torchdata"):
        from_plain({"_sampler_iter_yielded": 3})


def test_the_first_eight_keys_of_another_dict_are_named() -> None:
    with pytest.raises(ForeignStateError) as caught:
        from_plain({key: 1 for key in "ihgfedcba"})
    assert caught.value.origin == f"something with the keys {[*'abcdefgh']}"


@given(st.binary(max_size=200))
def test_packing_gives_back_any_bytes(data: bytes) -> None:
    assert unpack_words(pack_words(data)) == data


@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=40))
def test_numbers_in_wide_fields_take_half_the_room(words: list[int]) -> None:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    assert unpack_words(pack_words(data)) == data
    assert len(pack_words(data)) < 0.75 * len(data) + 24


@given(st.text(max_size=60) | st.text(max_size=60).map(lambda text: "low:" + text))
def test_damaged_text_is_a_value_error(text: str) -> None:
    try:
        unpack_words(text)
    except ValueError:
        pass
