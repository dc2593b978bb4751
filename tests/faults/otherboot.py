"""A process that takes itself to be on another machine: the kernel's id of this boot is another.

A file mounted over that id, as some containers have it, is seen through and counts as no id at all
(runtime/process.py). So the id is put into the process, before it asks for one. Imports `os` and
`sys` alone: it is part of what starts before each round.
"""

import os
import sys

NAME = "LIFEHOLD_FAULTS_BOOT"


def pretend():
    """Have the boot id that the environment names, if it names one."""
    if (wished := os.environ.get(NAME)) is None:
        return
    from lifehold.runtime import process

    process.boot_id = lambda: wished
    for name, module in list(sys.modules.items()):
        if name.startswith("lifehold.") and hasattr(module, "boot_id"):
            module.boot_id = process.boot_id
