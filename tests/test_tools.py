"""Tools run as scripts: Python looks for packages in their folder first."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_no_tool_has_the_name_of_a_package_that_transformers_looks_for() -> None:
    folder = Path(__file__).parents[1] / "tools"
    program = f"import sys; sys.path[0] = {str(folder)!r}; from transformers import AutoModelForCausalLM as model; "
    # Its modeling code asks for optional packages, `kernels` among them, and takes a file of that name for one.
    program += "import transformers.modeling_utils; print(sorted(n for n, m in sys.modules.items() "
    program += f"if str(getattr(m, '__file__', None)).startswith({str(folder)!r})))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr[-500:]) == ("[]\n", "")
