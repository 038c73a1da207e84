"""A real server of an engine on loopback, and vLLM's."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class EngineServer:
    """A server in a process group of its own.

    Args:
        words: of the command, without its port.
        log: file that it writes to.
        settings: of its environment.
        healthy: path that it answers once it is ready.
    """

    def __init__(self, words: Sequence[str], log: Path, settings: Mapping[str, str], healthy: str = "/health") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._words = [sys.executable, *words, "--host", "127.0.0.1", "--port", str(self.port)]
        self._log, self._settings, self._healthy = log, {"OMP_NUM_THREADS": "1", **settings}, healthy
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it answers some time later."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, env={**os.environ, **self._settings}, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + 600
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self._healthy}", timeout=5).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def cpu_seconds(self) -> float:
        """CPU time that all of its processes have taken so far."""
        assert self._process is not None
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[2]) == self._process.pid:
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it at once, with all of its processes."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class VllmServer(EngineServer):
    """A vLLM server of a checkpoint's folder with an export."""

    def __init__(
        self, folder: Path, name: str, stated: Mapping[str, Any], log: Path, *words: str, dtype: str = "float32"
    ) -> None:
        self.folder = folder
        whole = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        whole += ["--dtype", dtype, "--enforce-eager", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.08"]
        whole += ["--served-model-name", name, *words, "--max-model-len", str(stated["max_model_len"])]
        whole += ["--hf-overrides", json.dumps(stated["hf_overrides"])]
        super().__init__(whole, log, {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_KVCACHE_SPACE": "1"})
