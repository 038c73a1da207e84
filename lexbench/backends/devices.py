"""Devices by name."""

import torch

from lexbench.core.errors import ConfigError


def check_device(name: str) -> None:
    """ConfigError for what is no name of a device on any machine."""
    if name in ("auto", "all"):
        return
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"backend.device {name} is not available ({reason}): use auto or cpu") from None
    if kind == "meta":
        raise ConfigError("backend.device meta holds no numbers: use auto or cpu")


def device_of(name: str) -> torch.device:
    """The device of a name (auto, all, cpu, cuda:1, ...); ConfigError if this machine does not have it."""
    if name in ("auto", "all"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    device = torch.device(name)
    try:
        # torch.device takes any index: only memory shows whether the device is here.
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"backend.device {name} is not available ({reason}): use auto or cpu") from None
    return device
