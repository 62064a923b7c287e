"""Interrupt a real kernel in the middle of an epoch, as the button does: ``interrupted.py``.

Prints what the kernel says afterwards. It is a program of its own; see ``kernels.py``.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_client.manager import start_new_kernel

_LIMIT_S = 60

_BEGIN = """
import multiprocessing, torch
from picklable_loader import DataLoader

class Stuck(torch.utils.data.Dataset):
    # a turnstile that workers share: unlike an Event, it survives a worker that dies waiting
    free = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if index == 17:
            # The button may meet the loop's own code: the worker then waits on, and is freed.
            with self.free:
                pass
        return index

fork = {"multiprocessing_context": "fork"} if WORKERS else {}  # the semaphore asks for it
it = iter(DataLoader(Stuck(), batch_size=2, num_workers=WORKERS, **fork))
seen = []
"""
_LOOP = """
for batch in it:
    seen += batch.tolist()
    if len(seen) == 16:
        print("at the next one", flush=True)
"""
_AFTER = f"""
before = len(seen)
Stuck.free.release()
{_LOOP}
print(before, it.step, seen == list(range(30)), sum(w.tasks for w in it.stats().workers) > 0)
"""


def main(workers: str) -> None:
    """Interrupt a pass that waits for its ninth batch, and finish it."""
    manager, client = start_new_kernel(startup_timeout=_LIMIT_S)
    try:

        def hook(message: Any) -> None:
            if message["content"].get("text", "").startswith("at the next"):
                manager.interrupt_kernel()

        def do(code: str, hook: Any = None) -> str:
            told: list[str] = []

            def note(message: Any) -> None:
                told.append(message["content"].get("text", ""))
                if hook is not None:
                    hook(message)

            reply = client.execute_interactive(code, output_hook=note, timeout=_LIMIT_S)
            return str(reply["content"].get("ename", "")) + "".join(told)

        do(_BEGIN.replace("WORKERS", workers))
        print(do(_LOOP, hook))
        print(do(_AFTER))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
