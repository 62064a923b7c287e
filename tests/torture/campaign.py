"""Campaign: trials in child processes, so that none of them can stop it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import torch
from chaos.processes import TELL, fork, members, wait_for_all

from .law import Said, Void, Wrong
from .trials import Trial, drawn

#: trials that one child process does
_IN_A_ROW = 25
#: seconds that a trial may take. Most take a tenth of one; three epochs of spawned workers take 43
#: seconds of processor time, and beside `make test` on a slow machine five times as long.
_LIMIT_S = 400.0
#: seconds within which nothing is left of a child that has ended: beside six busy processes of a
#: higher priority, 30 were too few for its interpreter to end
_GONE_S = 120.0
#: seconds that may be spent on making one failure smaller
_SMALLER_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """What became of a trial.

    Attributes:
        result: "held", "said" (refused, or warned about), "void", or what is wrong, in a word.
        text: more of it.
    """

    result: str
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.result not in ("held", "said", "void")

    @property
    def sort(self) -> tuple[str, str]:
        """The same for failures that are alike."""
        return self.result, re.sub(r"\d+|0x\w+", "#", self.text.partition("\n")[0])[:60]


@dataclass
class Campaign:
    """Trials one after the other.

    Attributes:
        seed: decides about all of them.
        kinds: names of the kinds that are tried.
        say: is given each line that is to be printed.
        count: results, each with its number.
        failures: by what is alike, how often.
    """

    seed: int
    kinds: list[str]
    say: Callable[[str], None]
    count: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def run(self, seconds: float = float("inf"), most: int = sys.maxsize) -> None:
        """Try until the time is up, or so many were tried."""
        began, number = time.monotonic(), 0
        while time.monotonic() - began < seconds and number < most:
            numbers = range(number, number + min(_IN_A_ROW, most - number))
            trials = [drawn(Random(f"{self.seed} {n}"), self.kinds) for n in numbers]
            for trial, verdict in verdicts(trials):
                number += 1
                self.count[verdict.result] += 1
                if verdict.failed:
                    self._fail(number - 1, trial, verdict)
                if time.monotonic() - began > seconds:
                    break

    def summary(self) -> str:
        """What came of it, in a few lines."""
        rows = [f"{result:20s} {count:8d}" for result, count in sorted(self.count.items())]
        alike = [f"{count:6d} x {' | '.join(sort)}" for sort, count in self.failures.items()]
        return "\n".join([f"seed {self.seed}: {self.count.total()} trials", *rows, *alike])

    def _fail(self, number: int, trial: Trial, verdict: Verdict) -> None:
        sort = (trial.kind, *verdict.sort)
        self.failures[sort] += 1
        if self.failures[sort] > 1:
            return
        smaller, verdict = made_smaller(trial, verdict)
        about = f"Seed {self.seed}, trial {number}: {verdict.result}.\n\n{verdict.text.strip()}\n"
        script = smaller.script(about)
        line = "-" * 100
        by_itself = "fails by itself" if fails_by_itself(script) else "does NOT fail by itself"
        self.say(f"{line}\nFAILED: {' | '.join(sort)}; the script {by_itself}\n{line}\n{script}")


def verdicts(trials: list[Trial], limit_s: float = _LIMIT_S) -> Iterator[tuple[Trial, Verdict]]:
    """Try each; one that hangs or kills its process costs nothing but itself."""
    left = list(trials)
    while left:
        done = 0
        for verdict in _in_a_child(left, limit_s):
            yield left[done], verdict
            done += 1
        del left[:done]


def made_smaller(trial: Trial, verdict: Verdict) -> tuple[Trial, Verdict]:
    """The same failure with as little as possible."""
    deadline = time.monotonic() + _SMALLER_S
    found = True
    while found:
        found = False
        for smaller in trial.smaller():
            if time.monotonic() > deadline:
                break
            [(_, other)] = verdicts([smaller], _LIMIT_S / 4)
            if other.result == verdict.result and other.sort == verdict.sort:
                trial, verdict, found = smaller, other, True
                break
    return trial, verdict


def fails_by_itself(script: str) -> bool:
    """A fresh process that runs it ends with an error, or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script)
        try:
            command = [sys.executable, path]
            done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
            return done.returncode != 0
        except subprocess.TimeoutExpired:
            return True


def _in_a_child(trials: list[Trial], limit_s: float) -> Iterator[Verdict]:
    """Verdicts of the first trials: all of them, unless one ends the process that tries them."""
    with tempfile.NamedTemporaryFile() as output:
        reading, writing = os.pipe()
        child = fork(partial(_try_all, trials, writing), Path(output.name))
        os.close(writing)
        given, ended = b"", False
        try:
            for trial in trials:
                deadline = time.monotonic() + limit_s
                while b"\n" not in given and not ended:
                    if time.monotonic() > deadline:
                        os.kill(child, TELL)
                        time.sleep(1.0)  # it tells where it is
                        yield Verdict("hangs", Path(output.name).read_text()[-6000:])
                        return
                    if select.select([reading], [], [], 0.2)[0]:
                        more = os.read(reading, 2**16)
                        given, ended = given + more, not more
                    else:
                        ended = os.waitpid(child, os.WNOHANG)[0] != 0
                if b"\n" not in given:
                    yield Verdict("process died", Path(output.name).read_text()[-6000:])
                    return
                line, _, given = given.partition(b"\n")
                verdict = Verdict(**json.loads(line))
                if trial is trials[-1] and not wait_for_all(child, _GONE_S):
                    left = ", ".join(members(child))
                    verdict = Verdict("processes are left", f"{left}, of one of {trials}")
                yield verdict
                if verdict.failed:
                    return  # nobody knows what it has left behind in its process
        finally:
            os.close(reading)
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            wait_for_all(child, _GONE_S)


def _try_all(trials: list[Trial], writing: int) -> None:
    torch.set_num_threads(1)
    for trial in trials:
        verdict = _verdict(trial)
        os.write(writing, json.dumps(vars(verdict)).encode() + b"\n")
        if verdict.failed:
            return


def _verdict(trial: Trial) -> Verdict:
    try:
        exec(compile(trial.script(), "<trial>", "exec"), {"__name__": "__main__"})
    except Said as said:
        return Verdict("said", str(said))
    except Void as void:
        return Verdict("void", str(void))
    except Wrong as wrong:
        return Verdict("wrong", str(wrong))
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        return Verdict("unnamed error", text[-6000:] if len(text) > 6000 else text)
    return Verdict("held")
