"""Provenance of a run (versions, git commit, machine), and memory."""

import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from lexbench.core.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "datasets", "hydra-core")

GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers: where there is none, torch need not be loaded to ask."""


def accelerated() -> bool:
    """Whether this machine has the driver of a GPU."""
    return any(Path(file).exists() for file in GPUS)


@functools.cache
def gather() -> dict[str, Any]:
    """Versions, git commit of a checkout, and the machine: constant during a run."""
    return {
        "lexbench": __version__,
        "git": _git(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerator": _accelerator(),
    }


def _cuda() -> Any:
    """torch.cuda, where torch is loaded and there is a GPU; else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def forget_peak() -> bool:
    """Reset the peak of memory use; returns whether the system supports it."""
    if cuda := _cuda():
        cuda.reset_peak_memory_stats()
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the resident set's peak
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Peak memory of the accelerator, else of the process; since `forget_peak` if the system supports it."""
    if cuda := _cuda():
        return int(cuda.max_memory_allocated())
    # Linux counts it in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_bytes() -> int | None:
    """Free memory of the accelerator, else of the machine; None if unknown."""
    if cuda := _cuda():
        return int(cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated())
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> str | None:
    """Commit of the checkout of lexbench, with `+` if files differ from it."""
    here = Path(__file__).resolve().parents[1]
    if not (here.parent / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _accelerator() -> str | None:
    cuda = _cuda()
    return str(cuda.get_device_name(0)) if cuda else None
