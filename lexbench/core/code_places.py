"""Whose code a file is: lexbench's, an installed package's or Python's, or the user's."""

import sysconfig
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
OWN_CODE_FOLDERS = (PACKAGE_FOLDER, PACKAGE_FOLDER.parent / "tasks")
"""Folders of lexbench's own code, whose classes state versions of their own."""
INSTALLED_CODE_FOLDERS = {
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
}
"""Folders of Python and of installed packages."""


def is_own_code(file: str | Path) -> bool:
    """Whether a file is of lexbench."""
    place = Path(file).resolve()
    return any(place.is_relative_to(folder) for folder in OWN_CODE_FOLDERS)


def is_user_code(file: str | Path) -> bool:
    """Whether a file is neither of lexbench nor of Python or an installed package."""
    place = Path(file).resolve()
    return (
        place.is_file()
        and not is_own_code(place)
        and not any(place.is_relative_to(folder) for folder in INSTALLED_CODE_FOLDERS)
    )
