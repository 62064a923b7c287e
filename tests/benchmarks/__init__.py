"""Benchmarks: our loader against torch's and torchdata's. ``make bench`` runs them all.

Each measurement is one loader on one workload in one fresh process, so that nothing one loader
leaves behind (warm memory, imported modules, running servers) helps or hurts the next one.

    workload.py    what a benchmark is: a workload, its figures, their targets
    suite.py       all of them            throughput.py, skew.py, saving.py, feedback.py, others
    measure.py     one measurement, in its own process
    rounds.py      all measurements, in turn
    summary.py     medians, ratios, targets     table.py, chart.py    shown
"""
