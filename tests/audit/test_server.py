"""The language server, asked by a real client over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from ground import needs
from lifehold.audit.catalogue import RULES

ROOT = Path(__file__).parents[2]
BAD = RULES["LH115"].bad


async def asked(tmp_path: Path) -> tuple[list, list, list]:
    from lsprotocol import types
    from pygls.lsp.client import BaseLanguageClient

    client = BaseLanguageClient("test", "1")
    told: asyncio.Queue = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def note(params: types.PublishDiagnosticsParams) -> None:
        told.put_nowait(params)

    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    await client.start_io(sys.executable, "-m", "lifehold", "audit", "--lsp", env=env)
    try:
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        uri = (tmp_path / "app.py").as_uri()
        client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, BAD))
        )
        first = (await told.get()).diagnostics
        actions = await client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(uri),
                first[0].range,
                types.CodeActionContext(first),
            )
        )
        mended = actions[0].edit.changes[uri][0].new_text
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(2, uri),
                [types.TextDocumentContentChangeWholeDocument(mended)],
            )
        )
        second = (await told.get()).diagnostics
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(3, uri),
                [types.TextDocumentContentChangeWholeDocument(BAD)],
            )
        )
        assert (await told.get()).diagnostics == first
        client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri))
        )
        closed = await told.get()
        assert (closed.uri, list(closed.diagnostics)) == (uri, [])
        await client.shutdown_async(None)
        client.exit(None)
        return first, actions, second
    finally:
        await client.stop()


@needs("package:pygls", "package:libcst")
def test_an_editor_is_told_what_is_wrong_and_mends_it(tmp_path):
    first, actions, second = asyncio.run(asyncio.wait_for(asked(tmp_path), 60))
    assert [(each.code, each.range.start.line) for each in first] == [("LH115", 3)]
    assert [each.title for each in actions] == ["lifehold: mend LH115 handle-dropped"]
    assert not second


@needs("package:pygls", "package:libcst")
@pytest.mark.parametrize("text", ["x = a" + ".b" * 20_000, "x = '\udcff'\n", "x = '\0'\n"])
def test_a_text_that_cannot_be_parsed_ends_no_answer_to_an_editor(text):
    from lsprotocol import types

    from lifehold.audit import server

    where = types.Range(types.Position(0, 0), types.Position(1, 0))
    asked = types.CodeActionParams(
        types.TextDocumentIdentifier("file:///x.py"), where, types.CodeActionContext([])
    )
    assert server.diagnostics("/x.py", text) == []
    assert server.mends(asked, "/x.py", text) == []
