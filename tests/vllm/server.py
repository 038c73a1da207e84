"""A real vLLM server on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class VllmServer:
    """A server of a checkpoint's folder with an export, in a process group of its own."""

    def __init__(
        self, folder: Path, name: str, stated: Mapping[str, Any], log: Path, *words: str, dtype: str = "float32"
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.folder, self._log = folder, log
        self._words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        self._words += ["--dtype", dtype, "--enforce-eager", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.08"]
        self._words += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(self.port), *words]
        self._words += ["--max-model-len", str(stated["max_model_len"])]
        self._words += ["--hf-overrides", json.dumps(stated["hf_overrides"])]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it answers some time later."""
        settings = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + 600
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it at once, with all of its processes."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
