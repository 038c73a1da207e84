"""Any server with the OpenAI completions interface as a backend."""

from lexbench.core.extras import import_optional

import_optional("httpx2", "openai", "backend=openai")
