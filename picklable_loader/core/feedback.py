"""Feedback about delivered batches, on its way to the sampler.

A sampler that *listens* is drawn from only while the consumer waits, and right before that it
receives all that was said about the batches delivered so far. So its draws depend on deliveries and
on the budget, and never on which worker was fast. With a budget of ``n``, step ``k`` is drawn when
the consumer asks for step ``k - n + 1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..errors import UsageError
from .budget import Policy
from .order import Listener
from .plan import Plan

#: an object, as a pickle that nobody changes any more
Note = bytes


class Feedback:
    """Notes about delivered steps, until the sampler receives them.

    Args:
        plan: what the tasks are drawn from; None: streams, which have no sampler.
        heard: a sampler that listens has received all notes about steps below this one, which the
            consumer may get again; None: nobody knows yet of one that listens.
        notes: by step, those that it has not received, in order of the steps.
        waits: see below.
    """

    def __init__(
        self,
        plan: Plan | None,
        heard: int | None = None,
        notes: Mapping[int, Sequence[Note]] | None = None,
        waits: bool = False,
    ) -> None:
        self._plan = plan
        self.listening = heard is not None
        #: nothing is drawn before the consumer asks: the sampler listens, or was flushed
        self.waits = waits or self.listening
        #: nobody has seen yet whether the sampler listens, and whether it may
        self.unsure = plan is not None
        #: notes about steps below it were received before this run
        self._known = heard or 0
        #: so were those about steps below this one, which the consumer has asked for
        self._asked = self._known
        self._notes = {step: [*some] for step, some in (notes or {}).items()}

    def look(self, policy: Policy) -> None:
        """See whether the sampler listens, now that it may have been opened.

        Raises:
            UsageError: its draws would depend on more than deliveries and the budget.
        """
        if self.unsure:
            assert self._plan is not None, "it is what the sampler is of"
            listens = self._plan.listens
            if listens:
                _check(policy, self._plan.grouping.shard.world)
                self.listening = self.waits = True
            self.unsure = listens is None

    def add(self, step: int, notes: Sequence[Note]) -> None:
        """Something is said about a delivered step.

        It is dropped if this run delivers the step once more: a state may be behind its sampler.
        """
        if self.listening and step >= self._known:
            self._notes.setdefault(step, []).extend(notes)

    def retract(self, step: int) -> None:
        """The consumer has not got that step's batch after all."""
        self._notes.pop(step, None)
        self._asked = max(self._known, min(self._asked, step))

    def heard(self, newest: int, behind: bool) -> int:
        """The argument ``heard`` of the one that goes on from a state.

        Args:
            newest: the step that the consumer has got last, according to the state.
            behind: deliveries came after it.
        """
        return self._asked if behind else max(self._known, min(self._asked, newest))

    def about(self, step: int) -> Sequence[Note]:
        """The notes about a step that the sampler has not received."""
        return self._notes.get(step, ())

    def below(self, step: int) -> dict[int, list[Note]]:
        """The notes about steps below this one, for a state; copies."""
        return {at: [*notes] for at, notes in self._notes.items() if at < step}

    def hear(self, asked: int = 0) -> Exception | None:
        """Have the sampler receive all notes, step by step, before it is drawn from.

        Args:
            asked: the step that the consumer asks for; 0: it asks for none, and may say more about
                the last one.

        Returns:
            The sampler's error, for the consumer; the feedback counts as received.
        """
        if not self.listening:
            self.waits = False
            return None
        assert self._plan is not None, "it listens"
        self._asked = max(self._asked, asked)
        try:
            while self._notes:
                step = next(iter(self._notes))
                cast(Listener, self._plan.order).receive(step, self._notes.pop(step))
        except Exception as error:
            return error
        return None


def _check(policy: Policy, ranks: int) -> None:
    if not policy.in_order:
        wrong, why = "in_order=False", "the order in which workers finish"
    elif ranks > 1:
        wrong, why = "shard=", "the feedback of one rank, which the other ranks do not have"
    else:
        return
    raise UsageError(
        f"a sampler that receives feedback cannot be combined with {wrong}: its draws would depend "
        f"on {why}. Leave out {wrong}, or the method receive of the sampler"
    )
