"""The tasks that were drawn and are not delivered, each in its phase.

The window only records; the schedule decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..errors import InvalidTransition
from .events import Answered, Died, Send, Skipped, Wanted
from .phases import TRANSITIONS, Phase
from .streams import StreamPosition
from .task import Task

#: phases of tasks that are still to be answered
_OWED = (Phase.HELD, Phase.SENT)


@dataclass(slots=True)
class Entry:
    """A task in the window."""

    task: Task
    phase: Phase = Phase.HELD
    #: what became of it, once it is HERE
    answer: Answered | None = None
    #: workers that have died of it
    deaths: int = 0


class Window:
    """The tasks that were drawn and are not delivered."""

    def __init__(self) -> None:
        #: by step, ascending; others only look at it
        self.entries: dict[int, Entry] = {}
        #: tasks that were skipped while a worker had them; disjoint from the entries
        self._forgotten: dict[int, Entry] = {}
        #: steps that wait for delivery, as they arrived, failed or have no batch, in that order
        self.ready: list[int] = []
        #: tasks sent and not answered: entries (SENT) or forgotten
        self.under_way = 0
        #: steps that were given up, until the next task is drawn
        self.given_up: set[int] = set()
        #: entries that are HELD
        self.held = 0
        #: bytes that the batches that have arrived take together
        self.bytes = 0

    # --- reading ---------------------------------------------------------------------------------

    @property
    def redraws(self) -> bool:
        """A worker has a task that was given up: its step is not to be drawn again yet."""
        return not self.given_up.isdisjoint(self._forgotten)

    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in order of their steps."""
        return tuple([entry.task for entry in tuple(self.entries.values())])

    def next_ready(self, in_order: bool) -> Entry | None:
        """The entry to deliver next, if its batch is here; some batch is."""
        if not in_order:
            return self.entries[self.ready[0]]
        head = next(iter(self.entries.values()))
        return head if head.phase is Phase.HERE else None

    def held_back(self) -> list[Entry]:
        """The entries that can be sent now; none behind a batch that its stream cannot get past."""
        found, stuck = [], set()
        for entry in self.entries.values():
            stream = entry.task.stream
            if entry.phase is Phase.LETHAL and stream is not None:
                stuck.add(stream)
            elif entry.phase is Phase.HELD and stream not in stuck:
                found.append(entry)
        return found

    def stuck(self) -> set[int | None]:
        """Streams that cannot get past a batch that workers die of."""
        return {e.task.stream for e in self.entries.values() if e.phase is Phase.LETHAL}

    def owed(self) -> Counter[int | None]:
        """By stream, the tasks that are still to be answered."""
        return Counter(e.task.stream for e in self.entries.values() if e.phase in _OWED)

    def waiting_streams(self) -> set[int | None]:
        """Streams of which batches wait for delivery."""
        return {self.entries[step].task.stream for step in self.ready}

    def beyond(self, position: StreamPosition, stream: int, remember: bool) -> StreamPosition:
        """A stream's position once all of its batches that are here are delivered.

        ``position`` is the one of now. For ``remember`` see `StreamPosition.deliver`.
        """
        position = position.copy()
        for entry in self.entries.values():
            if entry.task.stream == stream and entry.answer is not None:
                position.deliver(entry.task, entry.answer.state, remember)
        return position

    # --- moving ----------------------------------------------------------------------------------

    def take_back(self, task: Task) -> None:
        """A task that was taken is to be done again."""
        self.entries.setdefault(task.step, Entry(task))
        self.entries = dict(sorted(self.entries.items()))

    def add(self, task: Task, held: bool = True) -> None:
        """A task was drawn; it is held, or given to a worker at once."""
        entries, step = self.entries, task.step
        in_turn = not entries or next(reversed(entries)) < step
        entries[step] = Entry(task, Phase.HELD if held else Phase.SENT)
        if not in_turn:
            self.entries = dict(sorted(entries.items()))
        self.held += held
        self.under_way += not held
        if self.given_up:
            self.given_up = set()

    def send(self, entry: Entry) -> None:
        """A task is given to a worker."""
        entry.phase = TRANSITIONS[entry.phase, Send]
        self.held -= 1
        self.under_way += 1

    def answer(self, event: Answered) -> tuple[Entry, bool]:
        """A task was answered.

        Returns:
            Its entry, and whether it had been forgotten.

        Raises:
            InvalidTransition: it was not under way; nothing has changed.
        """
        step, kind = event.step, type(event)
        entry = self.entries.get(step) or self._forgotten.get(step)
        if entry is None:
            raise InvalidTransition(Phase.GONE.value, kind.__name__, step)
        forgotten = entry.phase is Phase.FORGOTTEN
        entry.phase = TRANSITIONS[entry.phase, kind]
        self.under_way -= 1
        if entry.phase is Phase.GONE:
            del (self._forgotten if forgotten else self.entries)[step]
        else:
            entry.answer = event
            self.ready.append(step)
            self.bytes += event.bytes
        return entry, forgotten

    def take(self, entry: Entry, event: type[Wanted | Skipped]) -> Answered:
        """Remove an entry that is here, as its turn has come or it is skipped; give its answer."""
        entry.phase = TRANSITIONS[entry.phase, event]
        answer, step = entry.answer, entry.task.step
        assert answer is not None, "it is here"
        del self.entries[step]
        self.ready.remove(step)
        self.bytes -= answer.bytes
        return answer

    def skip(self, event: Skipped) -> tuple[int, list[int]]:
        """Skip the first tasks.

        Returns:
            The number of them, and the steps of those whose batches are here.
        """
        steps, here = list(self.entries)[: event.count], []
        for step in steps:
            entry = self.entries[step]
            if entry.phase is Phase.HERE:
                self.take(entry, Skipped)
                here.append(step)
                continue
            was, entry.phase = entry.phase, TRANSITIONS[entry.phase, Skipped]
            del self.entries[step]
            self.held -= was is Phase.HELD
            if was is Phase.SENT:
                self._forgotten[step] = entry
        return len(steps), here

    def give_up(self) -> list[int]:
        """Give up all tasks, which are to be drawn again; the steps of those that are here."""
        self.given_up = set(self.entries) | (self.given_up & self._forgotten.keys())
        return self.skip(Skipped(len(self.entries)))[1]

    def lose(self, event: Died, most_deaths: int) -> None:
        """A worker has died: its tasks are to be done again, unless too many workers die of one."""
        lost = sorted(event.lost)
        for step in lost:
            if step not in self.entries and step not in self._forgotten:
                raise InvalidTransition(Phase.GONE.value, Died.__name__, step)
        for step in lost:
            entry = self.entries.get(step) or self._forgotten.pop(step)
            entry.deaths += step == event.at_hand
            entry.phase = TRANSITIONS[entry.phase, Died]
            if entry.phase is Phase.HELD and entry.deaths >= most_deaths:
                entry.phase = TRANSITIONS[entry.phase, Died]
            self.under_way -= 1
            self.held += entry.phase is Phase.HELD
