"""How many tasks may be under way: the budget grows while workers idle, within bounds in bytes."""

from __future__ import annotations

from picklable_loader.core.budget import Budget, Policy

MIB = 2**20


def grown(budget: Budget, *, head: bool) -> int:
    """The tasks when it grows no more."""
    while budget.grow_behind_a_head() if head else budget.grow_for_an_idler():
        assert budget.tasks < 10_000
    return budget.tasks


def test_it_begins_with_one_task_for_one_worker_unless_another_policy_is_given() -> None:
    assert Budget(Policy()).tasks == 1
    assert grown(Budget(Policy(most=3)), head=True) == 3
    assert Budget(Policy(budget=7)).tasks == 7


def test_it_grows_by_one_task_for_each_worker_and_no_further_than_the_policy_says() -> None:
    budget = Budget(Policy(workers=4, budget=3, most=8))
    assert budget.grow_for_an_idler() and budget.tasks == 7
    assert budget.grow_behind_a_head() and budget.tasks == 8
    assert not budget.grow_for_an_idler() and not budget.grow_behind_a_head()
    assert not Budget(Policy(workers=4, budget=3, most=3)).grow_for_an_idler()


def test_idle_workers_let_it_grow_to_16_mib_and_a_slow_head_to_512_mib() -> None:
    policy = Policy(most=9999)
    assert grown(Budget(policy, largest=MIB), head=False) == 16
    assert grown(Budget(policy, largest=MIB), head=True) == 512
    assert grown(Budget(policy, largest=MIB + 1), head=False) == 15
    assert grown(Budget(policy, largest=8 * MIB), head=False) == 2
    assert grown(Budget(policy, largest=8 * MIB + 1), head=False) == 1
    assert grown(Budget(policy, largest=256 * MIB), head=True) == 2
    assert grown(Budget(policy, largest=256 * MIB + 1), head=True) == 1


def test_it_shrinks_when_a_larger_batch_comes_to_no_less_than_it_began_with() -> None:
    budget = Budget(Policy(budget=3, most=100), largest=MIB)
    assert grown(budget, head=False) == 16
    budget.note(MIB)
    assert budget.tasks == 16
    budget.note(2 * MIB)
    assert budget.tasks == 8
    budget.note(100 * MIB)
    assert budget.tasks == 3
    budget.note(MIB)  # a small one says nothing of the next
    assert (budget.tasks, budget.largest) == (3, 100 * MIB)


def test_growth_for_either_reason_shrinks_by_its_own_bound() -> None:
    budget = Budget(Policy(most=64), largest=MIB)
    assert grown(budget, head=False) == 16
    assert grown(budget, head=True) == 64
    budget.note(16 * MIB)
    assert budget.tasks == 32


def test_each_worker_may_have_a_task_until_the_bound_in_bytes_is_reached() -> None:
    budget = Budget(Policy(workers=2, bytes=100))
    for under_way in (0, 1):
        assert budget.has_room(99, under_way) and not budget.has_room(100, under_way)


def test_a_task_beyond_one_for_each_worker_waits_until_the_size_of_a_batch_is_known() -> None:
    budget = Budget(Policy(workers=2, bytes=100))
    assert not budget.has_room(0, 2)
    budget.note(10)
    assert budget.has_room(59, 2) and not budget.has_room(60, 2)  # 4 × 10 more at most
    assert budget.has_room(19, 3) and not budget.has_room(20, 3)


def test_without_a_bound_in_bytes_there_is_always_room() -> None:
    assert Budget(Policy(), largest=MIB).has_room(2**60, 1000)
