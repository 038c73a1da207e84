"""Provenance of a run (versions, git commit, machine), and memory."""

import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lexbench.core.version import full_version

RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "datasets", "hydra-core")

PROCESS_CGROUP_FILE, CGROUPS_FOLDER = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Linux's control groups: which is this process's, and where all are."""
GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers: where there is none, torch need not be loaded to ask."""


def has_gpu_driver() -> bool:
    """Whether this machine has the driver of a GPU."""
    return any(Path(file).exists() for file in GPU_DEVICE_FILES)


@functools.cache
def n_usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect_provenance() -> dict[str, Any]:
    """Versions, git commit of a checkout, and the machine: constant during a run."""
    return {
        "lexbench": full_version(),
        "git": _git(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in RECORDED_PACKAGES},
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


def _gpus(device: str | None) -> list[int]:
    """Numbers of the GPUs that a device's name means: none for cpu, every one for all, and for None the present one."""
    cuda = _cuda()
    if cuda is None or not (device or "cuda").startswith(("cuda", "all")):
        return []
    if device == "all":
        return list(range(cuda.device_count()))
    number = (device or "").partition(":")[2]
    return [int(number) if number else cuda.current_device()]


def forget_peak(device: str | None = None) -> bool:
    """Reset the peak of memory use; returns whether the system supports it."""
    if gpus := _gpus(device):
        for gpu in gpus:
            _cuda().reset_peak_memory_stats(gpu)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the resident set's peak
    except OSError:
        return False
    return True


def peak_bytes(device: str | None = None) -> int:
    """Peak memory of a GPU, or of the process; since `forget_peak` if the system supports it.

    Args:
        device: that computes: cpu, cuda, cuda:1, all (every GPU); None: not known, a GPU where there is one.
    """
    if gpus := _gpus(device):
        return sum(int(_cuda().max_memory_allocated(gpu)) for gpu in gpus)
    # Linux counts it in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_bytes(device: str | None = None) -> int | None:
    """Free memory of a GPU, with what torch has reserved and does not use, or of the machine; None if unknown.

    Of the machine a container or a job of Slurm may have a part only, by its control group.

    Args:
        device: as in `peak_bytes`.
    """
    if gpus := _gpus(device):
        cuda = _cuda()
        return sum(int(cuda.mem_get_info(i)[0] + cuda.memory_reserved(i) - cuda.memory_allocated(i)) for i in gpus)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    return min([available, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """Bytes that each control group of this process leaves; none where there is no limit (version 2 of the groups)."""
    try:
        own = next(line[3:] for line in PROCESS_CGROUP_FILE.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    folder, found = CGROUPS_FOLDER / own.strip("/"), list[int]()
    for each in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # the root has no limit, and some say "max"
            limit, used = (int((each / name).read_text()) for name in ("memory.max", "memory.current"))
            held = dict(line.split() for line in (each / "memory.stat").read_text().splitlines())
            # Files that were read count as used, and make room where it is needed.
            found.append(max(0, limit - used + int(held.get("inactive_file", 0))))
        if each == CGROUPS_FOLDER:
            break
    return found


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
