"""Python's own library, compiled into the image's file system.

    compile_library.py ROOT

The official images come without compiled code, and where nobody may write it is made anew by each
process: three quarters of what ``magnetar probe`` costs, half of what a start does.
"""

import importlib.util
import py_compile
import sys
import sysconfig
from pathlib import Path

_NEVER_RUN = {"site-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo"}


def compile_library(root: Path) -> int:
    """Put it below ``root``, where Python looks for it; returns the number of modules.

    Believed only while its source is what it was: the base may be another one than here.
    """
    library, done = Path(sysconfig.get_path("stdlib")), 0
    for source in sorted(library.rglob("*.py")):
        if _NEVER_RUN.intersection(source.relative_to(library).parts):
            continue
        compiled = importlib.util.cache_from_source(str(source))
        py_compile.compile(
            str(source),
            str(root / Path(compiled).relative_to("/")),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
        done += 1
    return done


if __name__ == "__main__":
    print(f"{compile_library(Path(sys.argv[1]))} modules of Python's library compiled")
