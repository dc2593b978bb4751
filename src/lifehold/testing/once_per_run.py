"""A pytest fixture for what is to be set up once per run, however many workers pytest-xdist has.

    @pytest.fixture(scope="session")
    def database(once_per_run):
        return once_per_run("database", start, teardown=stop)

Promise: `start()` runs in one worker, and its value, as JSON, comes to all, or its failure; when
all workers of the run are done with their tests, `stop(value)` runs once. A killed worker blocks
nobody. Rule: each worker that may use the fixture holds a shared lock on the run, from the end of
collection to the end of its tests; who has a teardown to do waits at its end for the exclusive
lock, which the kernel grants when the last of the others has gone, killed or not. Of those that
come in, the first finds the value, tears down, and forgets it; the others find nothing.
Not promised: a teardown when every worker that asked for the value was killed, as none is left who
knows how; anything between workers on several hosts, each of which is a run of its own.

Imported by every pytest run, so it loads nothing but `lifehold` itself until a test asks for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..lock import Lease

FIXTURE = "once_per_run"
KEY = pytest.StashKey["WorkerRun"]()


class WorkerRun:
    """This worker's part in a run. `folder`: the same for all workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.teardowns: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {}
        self.presence: Lease | None = None

    def join(self) -> None:
        """From now on nothing is torn down until we leave."""
        from ..lock import Lock

        if self.presence is None:
            lock = Lock(self.folder / "present", exclusive=False, label="a pytest worker")
            self.presence = lock.acquire()

    def __call__(
        self,
        name: str,
        setup: Callable[[], object],
        *,
        teardown: Callable[[Any], object] | None = None,
        **rules: object,
    ) -> Any:
        """What `setup()` returned in the one worker that ran it.

        `teardown(value)` is called once, when all workers are done. `rules`: of `lifehold.once`. A
        failure is kept for the whole run. Raises OnceFailed.
        """
        from ..core.errors import InvalidArgument
        from ..recipes.once import once

        if type(name) is not str or not name or "/" in name or "\0" in name:
            raise InvalidArgument(f"name must be a word without a slash, not {name!r}")
        if teardown is not None and not callable(teardown):
            raise InvalidArgument(f"teardown must be callable, not {teardown!r}")
        self.join()
        value = once(self._place_of(name), setup, **{"keep_failure": None} | rules)
        if teardown is not None:
            self.teardowns[name] = (teardown, rules)
        return value

    def _place_of(self, name: str) -> Path:
        """Where a name's value is kept: in a folder of its own, in which our lock is not."""
        return self.folder / "values" / name

    def leave(self) -> None:
        """Our tests are over. The last one tears down; its errors are raised at the end."""
        presence, self.presence = self.presence, None
        if presence is None:
            return
        presence.release()
        if not self.teardowns:
            return
        from ..lock import Lock

        errors: list[Exception] = []
        with Lock(self.folder / "present", label="pytest: the last teardown"):
            for name, (teardown, rules) in reversed(self.teardowns.items()):
                try:
                    self._tear_down(name, teardown, rules)
                except Exception as error:
                    errors.append(error)
        self.teardowns.clear()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("teardown", errors)

    def _tear_down(
        self, name: str, teardown: Callable[[Any], object], rules: dict[str, Any]
    ) -> None:
        """Unless another worker has done it: then there is no value any more."""
        from ..recipes.once import forget, once

        class NothingToTearDown(BaseException):
            """There is nothing to be torn down; no Exception, so it is no failure to be kept."""

        def gone() -> Any:
            raise NothingToTearDown

        try:
            # However old it is, and whatever it was made for: it is to be torn down.
            value = once(self._place_of(name), gone, **rules | {"keep": None, "unless": None})
        except NothingToTearDown:
            return
        forget(self._place_of(name))
        teardown(value)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """All are present before the first test: xdist begins when all workers have collected.

    First of these hooks: by that of xdist the controller is told that we have. One that came after
    would leave time for another worker to end all of its tests and to tear down without us.
    """
    asked = any(FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)
    if asked and not session.config.option.collectonly:
        run_of(session.config).join()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker none of whose tests asked for the fixture leaves here, and tears nothing down."""
    run = session.config.stash.get(KEY, None)
    if run is not None:
        run.leave()


def run_of(config: pytest.Config) -> WorkerRun:
    """The run that this process takes part in."""
    found = config.stash.get(KEY, None)
    if found is None:
        folder = _folder(config, getattr(config, "workerinput", {}).get("testrunuid"))
        folder.mkdir(exist_ok=True, mode=0o700)
        found = config.stash[KEY] = WorkerRun(folder)
    return found


def _folder(config: pytest.Config, run: str | None) -> Path:
    """Beside the temporary folders of the workers, which are in that of the run."""
    factory = getattr(config, "_tmp_path_factory", None)
    if run is None:
        return (factory.getbasetemp() if factory else Path(tempfile.mkdtemp())) / "lifehold"
    above = factory.getbasetemp().parent if factory else Path(tempfile.gettempdir())
    return Path(above, f"lifehold-{run}")


@pytest.fixture(scope="session")
def once_per_run(request: pytest.FixtureRequest) -> Iterator[WorkerRun]:
    """`once_per_run(name, setup, teardown=...)`: set up once per run, whatever the workers."""
    run = run_of(request.config)
    yield run
    run.leave()
