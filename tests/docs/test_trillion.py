"""4096 ranks and 10^12 samples, without processes: docs/elastic/trillion.py."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "elastic" / "trillion.py"


def test_each_sample_of_a_trillion_is_read_once() -> None:
    simulation = runpy.run_path(str(SCRIPT))
    found = simulation["lives"](seed=7)
    assert found[0].start == 0 and found[-1].end == simulation["SAMPLES"]
    assert len({life.world for life in found}) > 500
    for before, life in zip(found, found[1:]):
        assert before.end == life.start < life.end
        whole = (life.end - life.start) % (life.world * life.batch_size) == 0
        assert whole or life is found[-1]
    assert max(life.state_bytes for life in found) < 1024
