"""Random states: set aside without a trace, kept as text, and drawn from in worlds of their own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.observe import random_states, seed_everything
from zoo.datasets import noise

from picklable_loader.errors import DamagedStateError
from picklable_loader.rng.generators import (
    RNGS,
    GeneratorStates,
    Isolated,
    generator_from_text,
    generator_to_text,
    seed_all,
    set_generator,
    states_from_text,
    states_to_text,
)
from picklable_loader.rng.mt19937 import WORDS, read_words, write_words
from picklable_loader.rng.source import Source, random_int64

SEEDS = st.integers(0, 2**62 - 1)
NAMES = pytest.mark.parametrize("name", sorted(RNGS))

#: an odd number of Gaussians leaves a spare one with numpy and Python
DRAWS: dict[str, Callable[[], list[float]]] = {
    "torch": lambda: [torch.rand(()).item(), *torch.randn(3).tolist()],
    "numpy": lambda: [np.random.rand(), *(np.random.standard_normal() for _ in range(3))],
    "python": lambda: [random.random(), *(random.gauss(0, 1) for _ in range(3))],
}


#: what the libraries give after `seed_all(2**61 + 7)`
GOLDEN = [0.8981733822674381, 0.07630828937395717, 0.5349225401878357]


def reseed(seed: int, gaussians: int = 0) -> None:
    """Known states, with or without spare Gaussians."""
    seed_everything(seed)
    for _ in range(gaussians):
        noise()


# --- seeding -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(SEEDS, SEEDS)
def test_seed_all_is_what_the_three_libraries_do_with_the_seed(seed: int, before: int) -> None:
    reseed(before % 1000, gaussians=1)
    seed_all(seed)
    found = random_states()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    assert found == random_states()


def test_the_numbers_after_a_seed_never_change() -> None:
    seed_all(2**61 + 7)
    assert [random.random(), float(np.random.rand()), torch.rand(()).item()] == GOLDEN


# --- capture and restore -------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("gaussians", [0, 1, 2])
def test_a_generator_goes_on_where_it_was_captured(name: str, gaussians: int) -> None:
    reseed(5, gaussians)
    state = RNGS[name].capture()
    expected = [DRAWS[name](), DRAWS[name]()]
    assert RNGS[name].capture() != state
    reseed(6, 1 - gaussians % 2)
    RNGS[name].restore(state)
    assert RNGS[name].capture() == state
    assert [DRAWS[name](), DRAWS[name]()] == expected


@NAMES
def test_to_capture_and_to_restore_touches_nothing_else(name: str) -> None:
    reseed(5, gaussians=1)
    before = random_states()
    state = RNGS[name].capture()
    assert random_states() == before
    RNGS[name].restore(state)
    assert random_states() == before


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(0, 700), st.integers(0, 2))
def test_a_state_survives_as_text_at_any_position(seed: int, draws: int, gaussians: int) -> None:
    reseed(seed % 2**32, gaussians)
    torch.rand(draws), np.random.rand(draws)
    for _ in range(draws):
        random.random()
    for rng in RNGS.values():
        state = rng.capture()
        text = rng.to_text(state)
        assert type(text) is str and rng.from_text(text) == state


def test_texts_are_read_in_another_process() -> None:
    reseed(5, gaussians=1)
    texts = {name: rng.to_text(rng.capture()) for name, rng in RNGS.items()}
    program = (
        "import json, sys\n"
        "from picklable_loader.rng.generators import RNGS\n"
        "from test_randomness import DRAWS\n"
        "for name, text in json.load(sys.stdin).items():\n"
        "    RNGS[name].restore(RNGS[name].from_text(text))\n"
        "print(json.dumps({name: DRAWS[name]() for name in RNGS}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert json.loads(found.stdout) == {name: DRAWS[name]() for name in RNGS}


def damaged(text: str) -> Iterator[str]:
    yield ""
    yield "nothing of the kind"
    yield text[: len(text) // 2]
    yield text[:-4]
    yield text + "AAAA"
    yield "!" + text[1:-1] + "!"
    yield ":" + text
    yield text.replace("A", "ä")


@NAMES
def test_a_damaged_text_is_a_value_error_and_moves_nothing(name: str) -> None:
    reseed(5, gaussians=1)
    text = RNGS[name].to_text(RNGS[name].capture())
    before = random_states()
    for damage in damaged(text):
        with pytest.raises(ValueError):
            RNGS[name].from_text(damage)
    assert random_states() == before


@pytest.mark.parametrize("name", ["numpy", "python"])
def test_a_position_beyond_the_words_of_a_state_is_refused(name: str) -> None:
    words, *spare = RNGS[name].capture()
    beyond = np.uint32(WORDS).tobytes()
    bad = words[:-4] + beyond if name == "numpy" else beyond + words[4:]
    with pytest.raises(ValueError, match=f"(?i){name}"):
        RNGS[name].from_text(RNGS[name].to_text((bad, *spare)))


# --- another bit generator of numpy's ------------------------------------------------------------


@pytest.fixture
def another_bit_generator() -> Iterator[np.random.BitGenerator]:
    """Numpy's global functions draw from PCG64."""
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    other = np.random.PCG64(3)
    np.random.set_bit_generator(other)  # type: ignore[attr-defined]
    yield other
    np.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_an_exchanged_bit_generator_is_back_after_isolation(
    another_bit_generator: np.random.BitGenerator,
) -> None:
    state = another_bit_generator.state
    with Isolated():
        seed_all(4)
        inside = np.random.rand()
    assert np.random.get_bit_generator() is another_bit_generator  # type: ignore[attr-defined]
    assert another_bit_generator.state == state
    with Isolated():
        seed_all(4)
        assert np.random.rand() == inside


def test_a_state_of_a_twister_leaves_another_bit_generator_alone(
    another_bit_generator: np.random.BitGenerator,
) -> None:
    reached = another_bit_generator.state
    RNGS["numpy"].restore((bytes(4 * WORDS), 0, 0.0))
    assert another_bit_generator.state == reached
    own = RNGS["numpy"].capture()
    assert RNGS["numpy"].from_text(RNGS["numpy"].to_text(own)) == own


# --- Python's own twister ------------------------------------------------------------------------


@settings(deadline=None)
@given(SEEDS, st.integers(0, 1300))
def test_the_twisters_words_are_what_getstate_says(seed: int, draws: int) -> None:
    random.seed(seed)
    for _ in range(draws):
        random.random()
    _, words, _ = random.getstate()
    found = np.frombuffer(read_words(), dtype=np.uint32).tolist()
    assert len(found) == WORDS
    assert found == [words[-1], *words[:-1]]


def test_written_words_are_gone_on_with_and_the_spare_gaussian_stays() -> None:
    random.seed(1)
    words, expected = read_words(), [random.random() for _ in range(700)]
    random.seed(2)
    random.gauss(0, 1)
    spare = random.getstate()[2]
    write_words(words)
    assert random.getstate()[2] == spare is not None
    assert [random.random() for _ in range(700)] == expected


# --- isolation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [0, 1, 2])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_isolation_leaves_no_trace_spare_gaussians_included(before: int, inside: int) -> None:
    reseed(5, before)
    expected = random_states()
    with Isolated():
        seed_all(77)
        for _ in range(inside):
            noise()
    assert random_states() == expected
    found = [noise() for _ in range(3)]
    reseed(5, before)
    assert [noise() for _ in range(3)] == found


def test_isolation_leaves_no_trace_after_an_exception() -> None:
    reseed(5, gaussians=1)
    expected = random_states()
    with pytest.raises(KeyError):
        with Isolated():
            seed_all(77)
            noise()
            raise KeyError
    assert random_states() == expected


def test_isolation_within_isolation_leaves_no_trace_in_the_outer_one() -> None:
    reseed(5, gaussians=1)
    outermost = random_states()
    with Isolated():
        seed_all(1)
        noise()
        outer = random_states()
        for seed in (2, 3):
            with Isolated():
                seed_all(seed)
                noise()
                inner = random_states()
                with Isolated():
                    seed_all(4)
                    noise()
                assert random_states() == inner
            assert random_states() == outer
    assert random_states() == outermost


def test_one_context_may_be_used_again_and_does_not_depend_on_what_was_outside() -> None:
    context, drawn = Isolated(), []
    for seed in range(3):
        reseed(seed, seed % 2)
        expected = random_states()
        with context:
            seed_all(9)
            drawn.append([noise(), noise()])
        assert random_states() == expected
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_set_state_of_the_user_inside_does_not_get_out() -> None:
    expected = random_states()
    with Isolated():
        np.random.set_state(np.random.RandomState(3).get_state())
        np.random.seed(4)
        random.setstate(random.Random(3).getstate())
        torch.set_rng_state(torch.Generator().manual_seed(3).get_state())
    assert random_states() == expected


def test_threads_take_turns_and_each_draws_what_it_would_draw_alone() -> None:
    def draw(seed: int) -> list[list[float]]:
        with Isolated():
            seed_all(seed)
            return [noise() for _ in range(50)]

    alone = {seed: draw(seed) for seed in range(6)}
    reseed(5, gaussians=1)
    before = random_states()
    together: dict[int, list[list[list[float]]]] = {seed: [] for seed in alone}
    start = threading.Barrier(len(alone))

    def work(seed: int) -> None:
        start.wait()
        for _ in range(10):
            together[seed].append(draw(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {seed: [drawn] * 10 for seed, drawn in alone.items()}
    assert random_states() == before


def test_a_fork_during_another_threads_isolation_can_be_isolated_itself() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with Isolated():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # rather than to wait for ever for a turn that nobody can give back
        try:
            with Isolated():
                seed_all(1)
            os._exit(7)
        finally:
            os._exit(1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- universes -----------------------------------------------------------------------------------


def test_a_universe_goes_on_from_visit_to_visit_and_the_program_does_not_notice() -> None:
    seed_all(9)
    expected = [noise() for _ in range(4)]
    reseed(5, gaussians=1)
    before = random_states()
    universe = GeneratorStates.seeded(9)
    assert random_states() == before
    for drawn in expected:
        with universe:
            assert noise() == drawn
        assert random_states() == before


def test_a_universe_moves_on_and_lets_the_program_be_after_an_exception() -> None:
    universe = GeneratorStates.seeded(9)
    with universe:
        first = noise()
    again = GeneratorStates.seeded(9)
    before = random_states()
    with pytest.raises(KeyError):
        with again:
            assert noise() == first
            raise KeyError
    assert random_states() == before
    with universe:
        expected = noise()
    with again:
        assert noise() == expected


def test_a_generator_that_a_universe_does_not_name_stays_the_programs_own() -> None:
    seed_all(9)
    universe = GeneratorStates({"numpy": RNGS["numpy"].capture()})
    reseed(5)
    with universe:
        found = (random.random(), torch.rand(()).item())
    reseed(5)
    assert (random.random(), torch.rand(()).item()) == found


def test_two_universes_do_not_touch_each_other() -> None:
    one, other = GeneratorStates.seeded(1), GeneratorStates.seeded(2)
    drawn: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(3):
        for number, universe in ((1, one), (2, other)):
            with universe:
                drawn[number].append(noise())
    for number in (1, 2):
        seed_all(number)
        assert drawn[number] == [noise() for _ in range(3)]


def test_a_universe_survives_as_text() -> None:
    universe = GeneratorStates.seeded(9)
    with universe:
        noise()
    assert states_from_text(states_to_text(universe.states)) == universe.states


@pytest.mark.parametrize(
    "text", ["", "x", "1:2:3", ":", "0:zz:AAAA", "::", None, 3, [1], b"x"], ids=repr
)
@NAMES
def test_a_damaged_universe_names_the_generator(name: str, text: Any) -> None:
    with pytest.raises(DamagedStateError) as raised:
        states_from_text({name: text})
    assert raised.value.field == f"rng.{name}"
    assert raised.value.found == text


def test_a_generator_that_nobody_knows_is_damage() -> None:
    with pytest.raises(DamagedStateError, match="rng.cuda"):
        states_from_text({"cuda": "x"})


# --- torch's generators --------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 1300))
def test_a_generator_survives_as_text(seed: int, draws: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.rand(draws, generator=generator)
    text = generator_to_text(generator)
    assert type(text) is str and len(text) <= 4096
    assert torch.equal(generator_from_text(text).get_state(), generator.get_state())


def test_a_generator_is_put_at_a_saved_state_and_stays_the_same_object() -> None:
    saved = generator_to_text(torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(5)
    set_generator(generator, saved)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())


@pytest.mark.parametrize("damage", range(8))
def test_a_damaged_generator_is_a_value_error_and_moves_nothing(damage: int) -> None:
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    text = list(damaged(generator_to_text(generator)))[damage]
    with pytest.raises(ValueError):
        generator_from_text(text)
    with pytest.raises(ValueError):
        set_generator(generator, text)
    assert torch.equal(generator.get_state(), before)


# --- sources -------------------------------------------------------------------------------------


def test_a_random_number_is_drawn_as_torch_draws_its_seeds() -> None:
    torch.manual_seed(3)
    expected = int(torch.empty((), dtype=torch.int64).random_().item())
    torch.manual_seed(3)
    assert random_int64(None) == expected
    assert random_int64(torch.Generator().manual_seed(3)) == expected


def test_a_source_draws_from_the_generator_it_was_given_and_no_other() -> None:
    generator = torch.Generator().manual_seed(3)
    source = Source(None, {"loader": generator})
    before = random_states()
    found = [source.draw("loader", random_int64) for _ in range(2)]
    assert random_states() == before
    again = torch.Generator().manual_seed(3)
    assert found == [random_int64(again) for _ in range(2)]


def test_a_source_without_a_generator_draws_from_torchs() -> None:
    source = Source(None, {})
    torch.manual_seed(3)
    found = source.draw("loader", random_int64)
    torch.manual_seed(3)
    assert found == random_int64(None)


def test_a_resumed_source_draws_as_it_would_have_and_moves_torchs_generator_as_torch_would() -> (
    None
):
    torch.manual_seed(3)
    source = Source(None, {})
    saved = json.loads(json.dumps(source.state()))
    expected = [source.draw("loader", random_int64) for _ in range(3)]
    resumed = Source(None, {})
    torch.manual_seed(4)
    resumed.restore(saved)
    assert [resumed.draw("loader", random_int64) for _ in range(3)] == expected
    moved = torch.get_rng_state()
    torch.manual_seed(4)
    for _ in range(3):
        random_int64(None)
    assert torch.equal(torch.get_rng_state(), moved)


def test_the_state_of_a_resumed_source_goes_on_as_well() -> None:
    torch.manual_seed(3)
    source = Source(None, {})
    source.restore(source.state())
    torch.manual_seed(4)
    source.draw("loader", random_int64)
    saved = source.state()
    expected = source.draw("loader", random_int64)
    again = Source(None, {})
    again.restore(saved)
    assert again.draw("loader", random_int64) == expected


def test_a_source_apart_draws_the_same_and_moves_nothing() -> None:
    loader, sampler = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    for given_generators in ({}, {"loader": loader}, {"loader": loader, "sampler": sampler}):
        source = Source(None, given_generators)
        before = random_states(), loader.get_state().tolist(), sampler.get_state().tolist()
        apart = source.apart({})
        with Isolated():
            found = [apart.draw(name, random_int64) for name in ("loader", "sampler")]
        with apart.globals():
            drawn = noise()
        after = random_states(), loader.get_state().tolist(), sampler.get_state().tolist()
        assert after == before
        assert [source.draw(name, random_int64) for name in ("loader", "sampler")] == found
        assert noise() == drawn


def test_a_generator_given_twice_is_one_generator_apart_too() -> None:
    generator = torch.Generator().manual_seed(1)
    apart = Source(None, {"loader": generator, "sampler": generator}).apart({})
    found = [apart.draw(name, random_int64) for name in ("loader", "sampler")]
    assert found == [random_int64(generator) for _ in range(2)]


def test_the_start_of_a_draw_is_where_it_will_be_made() -> None:
    generator = torch.Generator().manual_seed(1)
    source = Source(None, {"loader": generator})
    for name in ("loader", "sampler"):
        start = generator_from_text(source.start(name))
        assert source.draw(name, random_int64) == random_int64(start)


def test_with_a_seed_there_is_no_state() -> None:
    assert Source(7, {}).state() == {}


def test_without_a_seed_the_state_has_what_later_draws_come_from() -> None:
    loader, sampler = torch.Generator(), torch.Generator()
    assert set(Source(None, {}).state()) == {"torch"}
    assert set(Source(None, {}).state(["numpy", "python"])) == set(RNGS)
    assert set(Source(None, {"loader": loader}).state()) == {"torch", "loader"}
    both = Source(None, {"loader": loader, "sampler": sampler})
    assert set(both.state()) == {"loader", "sampler"}
    assert both.state(live=True) == {}
    assert set(Source(None, {"loader": loader, "sampler": loader}).state()) == {"loader"}


@pytest.mark.parametrize("text", ["", "x", None, 3, [1]], ids=repr)
@pytest.mark.parametrize("name", ["loader", "sampler", *sorted(RNGS)])
def test_a_source_refuses_a_damaged_state_and_names_it(name: str, text: Any) -> None:
    source = Source(None, {"loader": torch.Generator()})
    source.check(source.state(RNGS), {})
    with pytest.raises(DamagedStateError) as raised:
        source.check({**source.state(RNGS), name: text}, {})
    assert raised.value.field == f"rng.{name}"
