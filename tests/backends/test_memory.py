"""Freed memory of the process."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys
from lexbench.core import memory
assert "torch" not in sys.modules
size = memory.MIN_RETURNED_BLOCK_BYTES

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def taken(size):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    return block

memory.free_bytes = lambda: FREE
memory.keep_freed()
before = held()
blocks = [(taken(size), taken(size // 2)) for _ in range(8)]  # behind each large one stands one that stays
for large, _ in blocks:
    libc.free(large)
for _ in range(2):
    print((held() - before) / (8 * size) - 0.5)
    memory.return_freed()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_blocks_stay_while_memory_is_plenty_and_go_back_at_the_end_of_a_cell() -> None:
    def kept(free: int, **given: str) -> list[float]:
        """Shares of freed blocks that the process still holds, and after `return_freed`."""
        script, surroundings = SCRIPT.replace("FREE", str(free)), {**os.environ, **given}
        words = [sys.executable, "-c", script]
        ran = subprocess.run(words, capture_output=True, text=True, check=True, env=surroundings)
        return [float(line) for line in ran.stdout.split()]

    plenty, little, own = kept(8 << 30), kept(1 << 20), kept(8 << 30, MALLOC_MMAP_THRESHOLD_="262144")
    assert plenty[0] > 0.9 and plenty[1] < 0.1
    assert little[0] < 0.1
    assert own[0] < 0.1  # the user's threshold counts
