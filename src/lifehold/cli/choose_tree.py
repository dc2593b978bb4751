"""The decision tree of `lifehold choose` and of docs/explanation/choose.md, as data.

Five questions; one that does not matter after the answers before it is not asked. The first row of
ENDS whose conditions all hold is the end: a line of Python, one of the command, and the page that
says what this lock promises and what not. tests/docs/test_choose.py holds the page to it.
"""

from __future__ import annotations

from ..core.value import value


@value
class Question:
    """`answers`: by the word that is typed, what it means. `unless`: answers that make it idle."""

    name: str
    text: str
    answers: dict[str, str]
    unless: tuple[tuple[str, str], ...] = ()


@value
class End:
    """Where the tree ends. `given`: the answers that lead here, by question; "": no such line."""

    given: dict[str, str]
    what: str
    python: str
    command: str
    page: str


QUESTIONS = (
    Question(
        "hosts",
        "Where do those run that must exclude each other?",
        {
            "one": "on one machine, or in containers that share a folder of it",
            "several": "on several hosts",
        },
    ),
    Question(
        "who",
        "What are they?",
        {
            "processes": "processes of yours",
            "threads": "threads of one process",
            "tasks": "tasks of one event loop",
            "tool": "another tool that has a lock of its own takes part",
        },
        (("hosts", "several"),),
    ),
    Question(
        "place",
        "What do all of these hosts reach?",
        {
            "folder": "a shared folder (NFS, CephFS, SMB ...)",
            "database": "a PostgreSQL",
            "redis": "a Redis or Valkey, and two holders after a failover are acceptable",
            "nothing": "none of these",
        },
        (("hosts", "one"),),
    ),
    Question(
        "how",
        "How many may be at work at the same time?",
        {
            "one": "one at a time",
            "readers": "many that read, or one that writes",
            "few": "some, up to a number",
            "once": "it is to be done once, and all get the result",
        },
        (("who", "tool"), ("place", "nothing")),
    ),
    Question(
        "late",
        "Does it do harm when one is paused and writes too late?",
        {
            "no": "no, or there is no such write",
            "yes": "yes",
        },
        (
            ("who", "threads"),
            ("who", "tasks"),
            ("who", "tool"),
            ("place", "nothing"),
            ("how", "once"),
        ),
    ),
)

PATH, SHARED, STORE = "./data/job.lock", "/mnt/shared/job.lock", "postgresql://HOST/DATABASE"
REDIS = "redis://HOST/0"
LEASE = 'kind="generation", ttl=30'
SLOT = "/mnt/shared/job-{number % 4}.lock"
ENDS = (
    End(
        {"who": "tool"},
        "Take the lock of that tool, not a second one. `lifehold who` says what kind it is.",
        "",
        "lifehold who PATH",
        "how-to/migrate/index.md",
    ),
    End(
        {"place": "nothing"},
        "First set up one place that all of them reach: nothing else keeps them apart.",
        "",
        "",
        "how-to/database.md",
    ),
    # Within one process
    End(
        {"who": "threads", "how": "one"},
        "A lock of Python itself is enough.",
        "lock = threading.Lock()",
        "",
        "explanation/choose.md",
    ),
    End(
        {"who": "threads", "how": "few"},
        "A semaphore of Python itself is enough.",
        "slots = threading.BoundedSemaphore(4)",
        "",
        "explanation/choose.md",
    ),
    End(
        {"who": "threads", "how": "readers"},
        "A reader/writer lock in a file.",
        f'with ReadWriteLock("{PATH}").writing() as lease: ...',
        "",
        "explanation/readwrite-lock.md",
    ),
    End(
        {"who": "threads", "how": "once"},
        "One call runs; all get its result or its failure.",
        'result = once("job", build)',
        "",
        "explanation/once.md",
    ),
    End(
        {"who": "tasks", "how": "one"},
        "A lock of Python itself is enough.",
        "lock = asyncio.Lock()",
        "",
        "explanation/choose.md",
    ),
    End(
        {"who": "tasks", "how": "few"},
        "A semaphore of Python itself is enough.",
        "slots = asyncio.BoundedSemaphore(4)",
        "",
        "explanation/choose.md",
    ),
    End(
        {"who": "tasks", "how": "readers"},
        "A reader/writer lock in a file, for tasks.",
        f'async with AsyncReadWriteLock("{PATH}").writing() as lease: ...',
        "",
        "explanation/readwrite-lock.md",
    ),
    End(
        {"who": "tasks", "how": "once"},
        "One call runs; all get its result or its failure.",
        'result = await aonce("job", build)',
        "",
        "explanation/once.md",
    ),
    # On one machine
    End(
        {"hosts": "one", "how": "one"},
        "A kernel lock: a crash frees it at once, and the next waiter is woken.",
        f'with Lock("{PATH}") as lease: ...',
        f"lifehold run {PATH} -- CMD",
        "explanation/kernel-lock.md",
    ),
    End(
        {"hosts": "one", "how": "readers"},
        "A reader/writer lock of the kernel.",
        f'with ReadWriteLock("{PATH}").writing() as lease: ...',
        f"lifehold run -s {PATH} -- CMD",
        "explanation/readwrite-lock.md",
    ),
    End(
        {"hosts": "one", "how": "few"},
        "A semaphore: each slot is a kernel lock.",
        f'with Semaphore("{PATH}", 4) as lease: ...',
        f"lifehold run --slots 0,1,2,3 {PATH} -- CMD",
        "explanation/semaphore.md",
    ),
    End(
        {"hosts": "one", "how": "once"},
        "One call runs; all get its result or its failure.",
        'result = once("job", build)',
        "lifehold once job -- CMD",
        "explanation/once.md",
    ),
    # A shared folder
    End(
        {"place": "folder", "how": "one"},
        "A lease in a file. Try the folder first: lifehold doctor --peer ssh:HOST /mnt/shared",
        f'with Lock("{SHARED}", {LEASE}) as lease: ...',
        f"lifehold run --kind generation --ttl 30 {SHARED} -- CMD",
        "explanation/generation-lock.md",
    ),
    End(
        {"place": "folder", "how": "readers"},
        "A reader/writer lock of leases. Try the folder first: lifehold doctor",
        f'with ReadWriteLock("{SHARED}", kind="soft", ttl=30).writing() as lease: ...',
        "",
        "explanation/readwrite-lock.md",
    ),
    End(
        {"place": "folder", "how": "few"},
        "A lock for each slot: worker NUMBER takes its own. In PostgreSQL there is a semaphore.",
        f'with Lock(f"{SLOT}", {LEASE}) as lease: ...',
        "lifehold run --kind generation --ttl 30 /mnt/shared/job-SLOT.lock -- CMD",
        "explanation/semaphore.md",
    ),
    End(
        {"place": "folder", "how": "once"},
        "One call runs under a lease; all get its result or its failure.",
        f'result = once("{SHARED}", build, kind="soft", ttl=30)',
        f"lifehold once --kind soft --ttl 30 {SHARED} -- CMD",
        "explanation/once.md",
    ),
    # A database
    End(
        {"place": "database", "how": "one"},
        'A lease in PostgreSQL, by the server\'s clock. Not behind a pooler: also kind="session".',
        f'with connect("{STORE}").lock("job", ttl=30) as lease: ...',
        f"lifehold run --store {STORE} job -- CMD",
        "explanation/postgresql.md",
    ),
    End(
        {"place": "database", "how": "readers"},
        "A reader/writer lock in PostgreSQL.",
        f'with connect("{STORE}").read_write("job").writing() as lease: ...',
        "",
        "explanation/store-leases.md",
    ),
    End(
        {"place": "database", "how": "few"},
        "A semaphore in PostgreSQL.",
        f'with connect("{STORE}").semaphore("job", 4) as lease: ...',
        "",
        "explanation/store-leases.md",
    ),
    End(
        {"place": "database", "how": "once"},
        "One call runs; all get its result or its failure, on every host.",
        f'result = once("{STORE}#job", build)',
        f"lifehold once --store {STORE} job -- CMD",
        "explanation/once.md",
    ),
    # A Redis
    End(
        {"place": "redis", "how": "one"},
        "A lease in Redis, by the server's clock: guard the data by its token.",
        f'with connect("{REDIS}").lock("job", ttl=30) as lease: ...',
        f"lifehold run --store {REDIS} job -- CMD",
        "explanation/redis.md",
    ),
    End(
        {"place": "redis", "how": "readers"},
        "A reader/writer lock in Redis.",
        f'with connect("{REDIS}").read_write("job").writing() as lease: ...',
        "",
        "explanation/redis.md",
    ),
    End(
        {"place": "redis", "how": "few"},
        "A semaphore in Redis.",
        f'with connect("{REDIS}").semaphore("job", 4) as lease: ...',
        "",
        "explanation/redis.md",
    ),
    End(
        {"place": "redis", "how": "once"},
        "One call runs; all get its result or its failure, on every host.",
        f'result = once("{REDIS}#job", build)',
        f"lifehold once --store {REDIS} job -- CMD",
        "explanation/once.md",
    ),
)
# With late=yes: no lock stops a paused holder that goes on, but the data can refuse it.
LATE = "Send lease.token with each write; let the data refuse an older one."
LATE_PAGE = "how-to/late-writer.md"


def is_asked(question: Question, answers: dict[str, str]) -> bool:
    """Whether the question still matters after these answers."""
    return not any(answers.get(name) == word for name, word in question.unless)


def end_of(answers: dict[str, str]) -> End:
    """Where these answers lead."""
    return next(
        each for each in ENDS if all(answers.get(name) == word for name, word in each.given.items())
    )
