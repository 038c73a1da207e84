"""Backends by name, for tests that hold for several: one of a part that is not here is skipped."""

from typing import Any

import pytest

from lexbench.core import objects, registry


def backend_class(name: str) -> Any:
    """Class of a backend."""
    if name not in registry.registered_names("backend"):
        pytest.skip(f"no backend {name} here")
    return objects.class_of(registry.read_named_config("backend", name), "backend")
