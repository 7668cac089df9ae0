// All that the page of the explorer takes of CodeMirror, as one module.
export { EditorState, StateEffect, StateField, Compartment } from "@codemirror/state";
export {
  EditorView, Decoration, keymap, lineNumbers, highlightActiveLine, highlightActiveLineGutter,
  highlightSpecialChars, drawSelection, hoverTooltip,
} from "@codemirror/view";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export {
  StreamLanguage, HighlightStyle, syntaxHighlighting, bracketMatching, indentUnit,
} from "@codemirror/language";
export { setDiagnostics, lintGutter, lintKeymap } from "@codemirror/lint";
export { autocompletion, completionKeymap, closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
export { searchKeymap } from "@codemirror/search";
export { tags } from "@lezer/highlight";
