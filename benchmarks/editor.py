"""From a key to its diagnostic: `python -m benchmarks.editor`.

A real client of the protocol opens a file of 2,000 lines in `lifehold audit --lsp`, changes it key
by key, and waits for what the server says each time. Every key makes a defect or takes it away, so
an old answer is not taken for a new one. Needs the extra `lifehold[audit]`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from lsprotocol import types
from pygls.lsp.client import BaseLanguageClient

LINES = 2_000
KEYS = 100
URI = "file:///app/locks.py"
BAD = "import fcntl\n\n\ndef start(path):\n    fcntl.flock(open(path), fcntl.LOCK_EX)\n"
PART = """

def work_{}(lock_path, items):
    with open(lock_path, "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for item in items:
            item.run()
"""


def text(*, bad: bool) -> str:
    """A file of so many lines whose functions lock; the first of them drops its handle."""
    head = BAD if bad else BAD.replace("fcntl.flock(open(path), fcntl.LOCK_EX)", "return path")
    each = PART.count("\n")
    return head + "".join(PART.format(number) for number in range(LINES // each))


async def measured() -> list[float]:
    """Seconds from each key to its diagnostic."""
    client = BaseLanguageClient("keys", "1")
    told: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def note(params: types.PublishDiagnosticsParams) -> None:
        told.put_nowait(params)

    await client.start_io(sys.executable, "-m", "lifehold", "audit", "--lsp")
    took = []
    try:
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        opened = types.TextDocumentItem(URI, "python", 0, text(bad=False))
        client.text_document_did_open(types.DidOpenTextDocumentParams(opened))
        assert not (await told.get()).diagnostics
        for key in range(1, KEYS + 1):
            whole = types.TextDocumentContentChangeWholeDocument(text(bad=key % 2 == 1))
            name = types.VersionedTextDocumentIdentifier(key, URI)
            began = time.perf_counter()
            client.text_document_did_change(types.DidChangeTextDocumentParams(name, [whole]))
            answer = await told.get()
            took.append(time.perf_counter() - began)
            assert (answer.version, len(answer.diagnostics)) == (key, key % 2)
        await client.shutdown_async(None)
        client.exit(None)
    finally:
        await client.stop()
    return took


def main() -> None:
    took = sorted(asyncio.run(measured()))
    lines = text(bad=True).count("\n")
    middle, late, last = statistics.median(took), took[KEYS * 95 // 100], took[-1]
    told = " ms, ".join(f"{seconds * 1000:.0f}" for seconds in (middle, late, last))
    print(f"{lines} lines, {KEYS} keys, median, 95th and longest: {told} ms")


if __name__ == "__main__":
    main()
