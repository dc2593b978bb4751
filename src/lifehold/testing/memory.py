"""The old name of `lifehold.testing.dict_lock`, for one release: the same module.

The store `memory://` is `store/memory.py`.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dict_lock import *  # noqa: F403
else:
    sys.modules[__name__] = import_module(".dict_lock", __package__)
