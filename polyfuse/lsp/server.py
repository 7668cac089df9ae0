"""The protocol of editors (LSP) on standard input and output, by pygls.

Findings come while one types: a text is checked when nothing was typed for a moment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import TextDocument

from polyfuse import __version__
from polyfuse.diagnostics import Diagnostic, Fix, Severity
from polyfuse.fixes import fix_of
from polyfuse.lsp.document import Document, Proposal, RenameError
from polyfuse.source import Span

PAUSE_S = 0.15
"""So long nothing is typed before a text is checked."""

_KINDS = {
    "keyword": lsp.CompletionItemKind.Keyword,
    "type": lsp.CompletionItemKind.TypeParameter,
    "name": lsp.CompletionItemKind.Variable,
    "function": lsp.CompletionItemKind.Function,
    "operator": lsp.CompletionItemKind.Module,
    "constant": lsp.CompletionItemKind.Constant,
}
_FOLDER = Path(__file__).parents[1]


class Server(LanguageServer):
    """The server, and what it knows of open texts: the last analysis of each."""

    def __init__(self) -> None:
        super().__init__("polyfuse", __version__)
        self._known: dict[str, Document] = {}

    def document(self, uri: str) -> Document:
        """The analysis of an open text as it is now."""
        text = self.workspace.get_text_document(uri).source
        known = self._known.get(uri)
        if known is None or known.text != text:
            known = self._known[uri] = Document(text, to_fs_path(uri) or uri)
        return known

    def forget(self, uri: str) -> None:
        """A text was closed: its findings go."""
        self._known.pop(uri, None)
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def offset(self, uri: str, position: lsp.Position) -> int:
        """The place in the text, in characters."""
        return self.workspace.get_text_document(uri).offset_at_position(position)

    def range(self, span: Span) -> lsp.Range:
        """A span in the units of the protocol."""
        text = TextDocument("", span.source.text, position_codec=self.workspace.position_codec)
        start, end = (text.client_position_at_offset(k) for k in (span.start, span.end))
        return lsp.Range(start, end)

    def publish(self, uri: str) -> None:
        """Tell the editor what was found."""
        document = self.document(uri)
        version = self.workspace.get_text_document(uri).version
        found = [self._told(d, document, uri) for d in document.found]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, version))

    def _told(self, d: Diagnostic, document: Document, uri: str) -> lsp.Diagnostic:
        place, warning = document.place_of(d), d.severity is Severity.WARNING
        elsewhere = "" if d.span is None or _is_of(d, document) else f"{d.span}: "
        return lsp.Diagnostic(
            range=self.range(place),
            message=elsewhere + d.message + (f"\nhint: {d.hint}" if d.hint else ""),
            severity=lsp.DiagnosticSeverity.Warning if warning else lsp.DiagnosticSeverity.Error,
            code=d.code,
            source="polyfuse",
            tags=[lsp.DiagnosticTag.Unnecessary] if d.code in ("PF290", "PF299") else None,
            related_information=[
                lsp.DiagnosticRelatedInformation(lsp.Location(_uri(s, uri), self.range(s)), remark)
                for s, remark in d.related
            ],
        )

    def action(self, d: Diagnostic, fix: Fix, document: Document, uri: str) -> lsp.CodeAction:
        """A hint that the editor offers to carry out."""
        edits = [lsp.TextEdit(self.range(e.span), e.text) for e in fix.edits]
        return lsp.CodeAction(
            title=fix.title,
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[self._told(d, document, uri)],
            is_preferred=fix.keeps_meaning,
            edit=lsp.WorkspaceEdit(changes={uri: edits}),
        )


def _is_of(d: Diagnostic, document: Document) -> bool:
    return d.span is not None and d.span.source.name == document.path


def _uri(span: Span, own: str) -> str:
    """The file of a span; that of the library for its operators."""
    name = span.source.name
    if name == to_fs_path(own):
        return own
    path = _FOLDER / name if name.startswith("stdlib/") else Path(name).resolve()
    return from_fs_path(str(path)) or own


def create_server() -> Server:
    """The server with all that it answers."""
    server = Server()
    _follow_texts(server)
    _answer_about_names(server)
    _answer_about_texts(server)
    return server


def _follow_texts(server: Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        uri, version = params.text_document.uri, params.text_document.version
        await asyncio.sleep(PAUSE_S)
        current = server.workspace.text_documents.get(uri)
        if current is not None and current.version == version:
            server.publish(uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.forget(params.text_document.uri)


class _Placed(Protocol):
    """What asks about a place in a text."""

    text_document: lsp.TextDocumentIdentifier
    position: lsp.Position


def _answer_about_names(server: Server) -> None:
    def place(params: _Placed) -> tuple[Document, int, str]:
        uri = params.text_document.uri
        return server.document(uri), server.offset(uri, params.position), uri

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document, offset, _ = place(params)
        found = document.hover(offset)
        if found is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, found[1]), server.range(found[0]))

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document, offset, uri = place(params)
        span = document.definition(offset)
        return lsp.Location(_uri(span, uri), server.range(span)) if span is not None else None

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        document, offset, uri = place(params)
        return [lsp.Location(uri, server.range(s)) for s in document.references(offset)]

    @server.feature(lsp.TEXT_DOCUMENT_RENAME)
    def rename(params: lsp.RenameParams) -> lsp.WorkspaceEdit:
        document, offset, uri = place(params)
        try:
            spans = document.renamed(offset, params.new_name)
        except RenameError as why:
            raise JsonRpcInvalidParams(str(why)) from None
        return lsp.WorkspaceEdit(
            changes={uri: [lsp.TextEdit(server.range(s), params.new_name) for s in spans]}
        )

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION)
    def completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document, offset, _ = place(params)
        return [_item(p) for p in document.proposals(offset)]


def _item(p: Proposal) -> lsp.CompletionItem:
    return lsp.CompletionItem(label=p.label, kind=_KINDS[p.kind], detail=p.detail or None)


def _answer_about_texts(server: Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        document = server.document(params.text_document.uri)
        new = document.formatted()
        if document.program is None or new is None or new == document.text:
            return []
        whole = Span(document.program.source, 0, len(document.text))
        return [lsp.TextEdit(server.range(whole), new)]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION)
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        document = server.document(uri)
        first, last = server.offset(uri, params.range.start), server.offset(uri, params.range.end)
        found = []
        for d in document.found:
            if _is_of(d, document) and d.span is not None and d.span.start <= last and first <= d.span.end:
                fix = fix_of(d, document.program)
                found += [server.action(d, fix, document, uri)] if fix is not None else []
        return found


def main() -> None:
    """Answer on standard input and output until the editor ends it."""
    create_server().start_io()
