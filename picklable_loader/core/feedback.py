"""Feedback about delivered batches, on its way to the sampler.

A sampler that *listens* is drawn from only while the consumer waits, and right before that it
receives all that was said about the batches delivered so far. So its draws depend on deliveries and
on the budget, and never on which worker was fast. With a budget of ``n``, step ``k`` is drawn when
the consumer asks for step ``k - n + 1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import UsageError
from .budget import Policy

#: an object, as a pickle that nobody changes any more
Note = bytes


class Receiver(Protocol):
    """A plan, as far as feedback needs it."""

    @property
    def listens(self) -> bool:
        """The sampler receives feedback."""

    @property
    def ranks(self) -> int:
        """Ranks that share its order."""

    def receive(self, step: int, notes: Sequence[Note]) -> None:
        """Give the sampler what was said about a delivered step; raises what it raises."""


class Feedback:
    """Notes about delivered steps, until the sampler receives them.

    Args:
        plan: what the tasks are drawn from.
        heard: a sampler that listens has received the notes about all steps below this one; None:
            nobody knows yet of one that listens.
        notes: by step, those that it has not received, in order of the steps.
    """

    def __init__(
        self,
        plan: Receiver,
        heard: int | None = None,
        notes: Mapping[int, Sequence[Note]] | None = None,
    ) -> None:
        self._plan = plan
        self.listening = heard is not None
        self.heard = heard or 0
        self._notes = {step: [*some] for step, some in (notes or {}).items()}

    def look(self, policy: Policy, delivered: int) -> None:
        """See whether the sampler listens, now that it may have been opened.

        Raises:
            UsageError: its draws would depend on more than deliveries and the budget.
        """
        if not self.listening and self._plan.listens:
            _check(policy, self._plan.ranks)
            self.listening, self.heard = True, delivered

    def add(self, step: int, notes: Sequence[Note]) -> None:
        """Something is said about a delivered step.

        It is dropped if the sampler has heard of that step: a state may be behind its sampler, and
        then brings the same steps again.
        """
        if self.listening and step >= self.heard:
            self._notes.setdefault(step, []).extend(notes)

    def retract(self, step: int) -> None:
        """The consumer has not got that step's batch after all."""
        self._notes.pop(step, None)

    def below(self, step: int) -> dict[int, list[Note]]:
        """The notes about steps below this one, for a state; copies."""
        return {at: [*notes] for at, notes in self._notes.items() if at < step}

    def hear(self, delivered: int) -> Exception | None:
        """Have the sampler receive all notes, step by step.

        Args:
            delivered: all steps below this one were delivered, and count as heard of.

        Returns:
            What the sampler has raised, for the consumer; it counts as received.
        """
        if not self.listening:
            return None
        self.heard = max(self.heard, delivered)
        try:
            while self._notes:
                step = next(iter(self._notes))
                self._plan.receive(step, self._notes.pop(step))
        except Exception as error:
            return error
        return None


def _check(policy: Policy, ranks: int) -> None:
    if policy.bytes is not None:
        wrong, why = "prefetch_bytes=", "the time at which batches arrive"
    elif not policy.in_order:
        wrong, why = "in_order=False", "the order in which workers finish"
    elif ranks > 1:
        wrong, why = "shard=", "the feedback of one rank, which the other ranks do not have"
    else:
        return
    raise UsageError(
        f"a sampler that receives feedback cannot be combined with {wrong}: its draws would depend "
        f"on {why}. Leave out {wrong}, or the method receive of the sampler"
    )
