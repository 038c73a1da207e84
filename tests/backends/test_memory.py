"""Freed memory of the process."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "lexbench/backends/hf/exact/memory.py"
SCRIPT = f"""
import ctypes, importlib.util, resource, sys

# Of its file: its package loads torch and transformers, which takes ten times as long.
spec = importlib.util.spec_from_file_location("memory", {str(FILE)!r})
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
assert "torch" not in sys.modules
MIN_RETURNED_BLOCK_BYTES, return_freed = memory.MIN_RETURNED_BLOCK_BYTES, memory.return_freed

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def taken(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block

CALLED
libc.free(taken(4 * MIN_RETURNED_BLOCK_BYTES))  # from here on glibc's own threshold is this size
before = held()
size = MIN_RETURNED_BLOCK_BYTES
blocks = [(taken(size), taken(size // 2)) for _ in range(8)]  # behind each large one stands one that stays
for large, _ in blocks:
    libc.free(large)
print((held() - before) / (8 * MIN_RETURNED_BLOCK_BYTES) - 0.5)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_activations_go_back_to_the_system() -> None:
    kept = {}
    for called, given in (("return_freed()", {}), ("", {}), ("return_freed()", {"MALLOC_MMAP_THRESHOLD_": "33554432"})):
        surroundings = {**os.environ, **given}
        script = SCRIPT.replace("CALLED", called)
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=surroundings
        )
        kept[called, bool(given)] = float(ran.stdout)
    assert kept["return_freed()", False] < 0.1
    assert kept["", False] > 0.9  # glibc alone keeps them: else this test shows nothing
    assert kept["return_freed()", True] > 0.9  # the user's threshold counts
