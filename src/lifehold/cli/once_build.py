"""`lifehold once --build DIR -- CMD`: a folder that one CMD fills, there as a whole for all.

Promise: who ends with 0 finds at DIR all that one CMD made; whatever is killed at any instant
leaves nothing there. Rule: that of recipes/once_build.py, whose `Site` it uses: CMD fills the
folder that LIFEHOLD_BUILD names, which is renamed to DIR when CMD has ended with 0, and before any
waiter is told so.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

from ..core import explain
from ..core.errors import InvalidArgument, LeaseLost, LifeholdError, SystemRefused
from ..core.mask import printable
from ..local.descriptors import files_for
from ..local.refusals import make_folders
from ..recipes.once_build import LOCK, put_in_place, remove, target_of
from ..recipes.once_build_site import Site
from . import exits
from .once_hold import OnceHold
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..recipes.once_build_site import Staging
    from ..recipes.once_run import Run

VARIABLE = "LIFEHOLD_BUILD"  # where CMD finds the folder that it fills
EMPTY = 1  # the status of a CMD that left nothing in it


class Build:
    """A folder that is to be built. `name`: its lock; `anew`: how to have it built again."""

    def __init__(self, path: str) -> None:
        if not hasattr(os, "fwalk"):
            raise SystemRefused("--build needs Unix, where a folder can be renamed over another")
        target = target_of(path)
        self.site, self.name = Site(files_for(target), target, remove), target + LOCK
        self.anew = f"rm -r {explain.quote(target)}"
        self.why = f"'{printable(target)}' is there"
        make_folders(self.site.files, target)

    @contextmanager
    def begun(self, run: Run) -> Iterator[Callable[..., OnceHold]]:
        """With a folder for CMD to fill: what holds CMD."""
        try:
            nonce = os.urandom(8).hex()
            self.site.clear(nonce)
            staging = self.site.begin(nonce)
        except BaseException:
            run.withdraw()
            raise
        mine = os.getpid()
        os.environ[VARIABLE] = staging.path
        try:
            yield partial(BuildHold, site=self.site, staging=staging)
        finally:
            if os.getpid() == mine and os.path.isdir(staging.path):
                remove(staging.path)
            staging.close()


class BuildHold(OnceHold):
    """CMD, from its start until the folder is in its place and its result published."""

    def __init__(self, *parts: Any, site: Site, staging: Staging) -> None:
        super().__init__(*parts)
        self._put = partial(put_in_place, site, staging, True)
        self._shown = f"'{printable(site.target)}'"

    def _made(self, code: int) -> int:
        """The exit code: 0 only when the folder is there."""
        if code:
            return code
        try:
            self._put()
        except LeaseLost:
            raise
        except InvalidArgument:
            say(f"{self.care.what} left nothing in the folder that becomes {self._shown}: it finds "
                f"its name in {VARIABLE}")  # fmt: skip
            return EMPTY
        except (LifeholdError, OSError) as error:
            say(f"{self._shown} cannot be put in its place: {error}")
            return exits.REFUSED
        return code
