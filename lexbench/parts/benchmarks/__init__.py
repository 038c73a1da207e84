"""Ask the exact forms of public benchmarks from your own copies."""
