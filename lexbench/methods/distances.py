"""Shared by methods that change distances: checks of the model and of counts, windows of whole groups."""

from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole


def check_rotary(model: Model) -> None:
    """Refused where the model has no rotary positions."""
    # A model with several kinds of layers states no single base, only how its layers rotate.
    if model.rope_base is None and model.rope_scaling is None:
        raise Refused(f"{model.name} has no rotary positions to remap: use method=none")


def check_count(what: str, value: int | None, remedy: str, least: int = 1) -> None:
    """ConfigError unless the count is left out or a whole number of at least `least`."""
    if value is not None and not is_whole(value, least):
        raise ConfigError(f"{what} must be a whole number of at least {least}, got {value}: {remedy}")


def whole_groups(group: int, tokens: int) -> int:
    """The most tokens of whole groups that these tokens hold, and one group where they hold none."""
    return max(group, tokens // group * group)
