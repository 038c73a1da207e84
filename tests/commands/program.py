"""Words of a short run, and what the fixture `lexbench` is."""

import subprocess
from collections.abc import Callable

CHANCE = ["backend=chance", "task=passkey", "lengths=[128,256]", "n=2"]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
