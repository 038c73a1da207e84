"""Any server with the OpenAI completions interface as a backend."""

from lexbench.core.parts import need

need("httpx2", "openai", "backend=openai")
