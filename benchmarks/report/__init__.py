"""Parts of the reports of all benchmarks: medians, gates, tables, the machine."""
