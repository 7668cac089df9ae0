"""The language server as an editor talks to it: a process, messages on standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

TEXT = """\
op f(inout m: f32[N], x: f32[N]) -> (y: f32[N]) {
  m[i] = m[i]*2.0
  y[i] = x[i] + m[i]  # 𝄞 é
}
"""
TIMEOUT_S = 60


class Editor:
    """An editor with one text open."""

    def __init__(self, client: LanguageClient, uri: str) -> None:
        self.client, self.uri, self.version = client, uri, 1
        self.found: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()
        self.id = lsp.TextDocumentIdentifier(uri)

    async def open(self, text: str) -> list[lsp.Diagnostic]:
        item = lsp.TextDocumentItem(self.uri, "polyfuse", 1, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return await self.told()

    async def type(self, start: tuple[int, int], end: tuple[int, int], text: str) -> list[lsp.Diagnostic]:
        self.version += 1
        where = lsp.Range(lsp.Position(*start), lsp.Position(*end))
        change = lsp.TextDocumentContentChangePartial(range=where, text=text)
        document = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))
        return await self.told()

    async def told(self) -> list[lsp.Diagnostic]:
        """The findings of the version that the text has now."""
        while True:
            params = await asyncio.wait_for(self.found.get(), TIMEOUT_S)
            if params.version == self.version:
                return list(params.diagnostics)


def talk(folder: Path, conversation: Callable[[Editor], Awaitable[Any]]) -> None:
    """Start a server, hold a conversation, end it in good order."""

    async def whole() -> None:
        client = LanguageClient("test", "1")
        editor = Editor(client, (folder / "t.pf").as_uri())

        @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def told(params: lsp.PublishDiagnosticsParams) -> None:
            editor.found.put_nowait(params)

        await client.start_io(sys.executable, "-m", "polyfuse", "lsp")
        await client.initialize_async(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
        client.initialized(lsp.InitializedParams())
        await conversation(editor)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    asyncio.run(asyncio.wait_for(whole(), 2 * TIMEOUT_S))


def test_findings_come_while_one_types(tmp_path: Path) -> None:
    async def conversation(editor: Editor) -> None:
        (warning,) = await editor.open(TEXT)
        assert (warning.code, warning.severity) == ("PF293", lsp.DiagnosticSeverity.Warning)
        assert warning.range == lsp.Range(lsp.Position(2, 16), lsp.Position(2, 20))
        assert warning.related_information and warning.related_information[0].location.range.start.line == 1
        (error,) = await editor.type((2, 9), (2, 13), "exq(x[i])")
        assert (error.code, error.severity) == ("PF202", lsp.DiagnosticSeverity.Error)
        assert "did you mean 'exp'?" in error.message
        (error,) = await editor.type((2, 9), (2, 18), "𝄞")  # two units of the protocol
        assert error.code == "PF104"
        assert error.range == lsp.Range(lsp.Position(2, 9), lsp.Position(2, 11))
        await editor.type((2, 9), (2, 11), "1.0")
        (error,) = await editor.type((0, 2), (0, 3), "(")
        assert error.code == "PF106"

    talk(tmp_path, conversation)


def test_hints_are_offered_as_edits(tmp_path: Path) -> None:
    async def conversation(editor: Editor) -> None:
        await editor.open(TEXT)
        where = lsp.Range(lsp.Position(2, 17), lsp.Position(2, 17))
        params = lsp.CodeActionParams(editor.id, where, lsp.CodeActionContext([]))
        (action,) = await editor.client.text_document_code_action_async(params) or []
        assert isinstance(action, lsp.CodeAction) and action.is_preferred and action.edit is not None
        (edit,) = (action.edit.changes or {})[editor.uri]
        assert edit.new_text == "old(m[i])" and edit.range.start == lsp.Position(2, 16)

    talk(tmp_path, conversation)


def test_names(tmp_path: Path) -> None:
    async def conversation(editor: Editor) -> None:
        await editor.open(TEXT)
        client, at = editor.client, lsp.Position(2, 9)

        def rename(new: str) -> lsp.RenameParams:
            return lsp.RenameParams(text_document=editor.id, position=at, new_name=new)

        hover = await client.text_document_hover_async(lsp.HoverParams(editor.id, at))
        assert hover is not None and "x: f32[N]" in hover.contents.value
        found = await client.text_document_definition_async(lsp.DefinitionParams(editor.id, at))
        assert isinstance(found, lsp.Location) and found.range.start == lsp.Position(0, 22)
        context = lsp.ReferenceContext(True)
        every = await client.text_document_references_async(lsp.ReferenceParams(context, editor.id, at))
        assert [f.range.start.line for f in every or []] == [0, 2]
        renamed = await client.text_document_rename_async(rename("input"))
        assert renamed is not None and renamed.changes is not None
        assert [e.new_text for e in renamed.changes[editor.uri]] == ["input"] * 2
        with pytest.raises(Exception, match="called 'y' already"):
            await client.text_document_rename_async(rename("y"))

    talk(tmp_path, conversation)


def test_errors_of_an_imported_file_are_shown_at_the_import(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.pf").write_text("op g(x: f32[N]) -> (y: f32[N]) { y[i] = }\n")

    async def conversation(editor: Editor) -> None:
        text = '# first\nimport "sub/other.pf"\nop f(x: f32[N]) -> (y: f32[N]) { y = g(x) }\n'
        (error,) = await editor.open(text)
        assert error.range == lsp.Range(lsp.Position(1, 7), lsp.Position(1, 21))
        assert "other.pf:1:" in error.message

    talk(tmp_path, conversation)


def test_definitions_of_the_library_are_files(tmp_path: Path) -> None:
    async def conversation(editor: Editor) -> None:
        assert await editor.open("op f(x: f32[N]) -> (y: f32[N]) { y = softmax(x) }") == []
        params = lsp.DefinitionParams(editor.id, lsp.Position(0, 40))
        found = await editor.client.text_document_definition_async(params)
        assert isinstance(found, lsp.Location) and found.uri.endswith("polyfuse/stdlib/softmax.pf")
        assert Path(found.uri.removeprefix("file://")).is_file()

    talk(tmp_path, conversation)


def test_formatting_and_completion(tmp_path: Path) -> None:
    async def conversation(editor: Editor) -> None:
        await editor.open(TEXT)
        options = lsp.FormattingOptions(tab_size=2, insert_spaces=True)
        format = lsp.DocumentFormattingParams(editor.id, options)
        (edit,) = await editor.client.text_document_formatting_async(format) or []
        assert edit.new_text == TEXT.replace("m[i]*2.0", "m[i] * 2.0")
        assert edit.range == lsp.Range(lsp.Position(0, 0), lsp.Position(4, 0))
        where = lsp.CompletionParams(editor.id, lsp.Position(2, 10))
        found = await editor.client.text_document_completion_async(where)
        assert isinstance(found, list) and {"x", "m", "exp", "softmax"} <= {c.label for c in found}

    talk(tmp_path, conversation)
