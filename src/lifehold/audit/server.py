"""`lifehold audit --lsp`: findings and fixes in an editor, over the language server protocol.

Diagnostics come when a file is opened or changed, from the text that the editor holds, and go
when it is closed; a code action mends one finding. Settings are those of the nearest
pyproject.toml. Needs pygls, which the extra `lifehold[audit]` brings; fixes need libcst, and are
not offered without it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from . import fix, report, scan, settings
from .catalogue import RULES

if TYPE_CHECKING:
    from .finding import Finding

GRAVE = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}


def served(version: str) -> LanguageServer:
    """The server, ready to be started."""
    server = LanguageServer("lifehold-audit", version)

    def look(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        found = diagnostics(to_fs_path(uri) or uri, document.source)
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, found, document.version)
        )

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(given: types.DidOpenTextDocumentParams) -> None:
        look(given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(given: types.DidChangeTextDocumentParams) -> None:
        look(given.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(given: types.DidCloseTextDocumentParams) -> None:
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(given.text_document.uri, [])
        )

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION)
    def actions(given: types.CodeActionParams) -> list[types.CodeAction]:
        document = server.workspace.get_text_document(given.text_document.uri)
        return mends(given, to_fs_path(document.uri) or document.uri, document.source)

    return server


def chosen(path: str) -> settings.Settings:
    try:
        return settings.loaded(settings.nearest(Path(path).parent))
    except settings.Unusable:
        return settings.Settings()


def diagnostics(path: str, text: str) -> list[types.Diagnostic]:
    """What is found in a text; nothing while it cannot be parsed."""
    try:
        found = scan.of_text(path, text, chosen(path))
    except Exception:  # noqa: BLE001  an editor asks again with the next key
        return []
    rows = text.split("\n")
    return [diagnostic(each, rows) for each in found]


def diagnostic(each: Finding, rows: list[str]) -> types.Diagnostic:
    return types.Diagnostic(
        types.Range(
            types.Position(each.line - 1, units(rows, each.line, each.column)),
            types.Position(each.end_line - 1, units(rows, each.end_line, each.end_column)),
        ),
        f"{each.message}\nfix: {RULES[each.code].fix}" if each.code in RULES else each.message,
        severity=GRAVE[report.severity(each.code)],
        code=each.code,
        source="lifehold",
    )


def units(rows: list[str], line: int, column: int) -> int:
    """A column in bytes, counted from 1, as one in UTF-16 units, counted from 0."""
    row = rows[line - 1] if line <= len(rows) else ""
    return len(row.encode()[: column - 1].decode(errors="replace").encode("utf-16-le")) // 2


def mends(given: types.CodeActionParams, path: str, text: str) -> list[types.CodeAction]:
    """One action for each finding of the range that has a cure."""
    if importlib.util.find_spec("libcst") is None or not path.endswith((".py", ".pyi", ".pyw")):
        return []
    try:
        data = text.encode()
    except UnicodeEncodeError:  # half a character, as an editor may hold it for a moment
        return []
    found = fix.findings(path, data)
    made = []
    for hit in found:
        if not given.range.start.line <= hit[1] - 1 <= given.range.end.line:
            continue
        after, kind = fix.attempt(path, data, hit, found, unsafe=True)
        if after is not None:
            made.append(action(given, hit, text, after.decode(), kind))
    return made


def action(
    given: types.CodeActionParams, hit: list[Any], text: str, after: str, kind: str
) -> types.CodeAction:
    whole = types.Range(types.Position(0, 0), types.Position(text.count("\n") + 1, 0))
    unsafe = " (read it before it runs)" if kind == "unsafe" else ""
    return types.CodeAction(
        f"lifehold: mend {hit[0]} {RULES[hit[0]].slug}{unsafe}",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[each for each in given.context.diagnostics if each.code == hit[0]],
        edit=types.WorkspaceEdit({given.text_document.uri: [types.TextEdit(whole, after)]}),
        is_preferred=not unsafe,
    )
