"""Programs: the commands, the benchmarks, the demo."""
