// The editor: CodeMirror with the language's words, findings, completion, hover, and lit places.
import * as cm from "./editor.js";

const TOKENS = {
  comment: "comment", string: "string", "constant.language": "atom", storage: "typeName", "keyword.control": "keyword",
  "support.function": "variableName.standard", "entity.name": "variableName.standard", "constant.numeric": "number",
  "keyword.operator": "operator", variable: "variableName",
};

/** Colours by the rules of the language: [[pattern, scope], ...], the first that fits counts. */
export function language(rules) {
  const tests = rules.map(([pattern, scope]) => [
    new RegExp(pattern, "uy"),
    TOKENS[Object.keys(TOKENS).find((k) => scope.startsWith(k))] ?? null,
  ]);
  const token = (stream, state) => {
    if (stream.eatSpace()) return null;
    if (stream.match(/^(op|fn)\b(?=\s+[A-Za-z_])/)) { state.declares = true; return "keyword"; }
    if (state.declares && stream.match(/^[A-Za-z_]\w*/)) { state.declares = false; return "variableName.definition"; }
    for (const [test, name] of tests) {
      test.lastIndex = stream.pos;
      const found = test.exec(stream.string);
      if (found && found[0]) { stream.pos += found[0].length; return name; }
    }
    stream.next();
    return null;
  };
  return cm.StreamLanguage.define({
    startState: () => ({ declares: false }),
    token,
    languageData: { commentTokens: { line: "#" }, closeBrackets: { brackets: ["(", "[", "{"] } },
  });
}

const style = cm.HighlightStyle.define([
  { tag: cm.tags.comment, color: "var(--comment)", fontStyle: "italic" },
  { tag: cm.tags.keyword, color: "var(--keyword)" },
  { tag: [cm.tags.typeName, cm.tags.atom], color: "var(--type)" },
  { tag: [cm.tags.number, cm.tags.string], color: "var(--number)" },
  { tag: cm.tags.standard(cm.tags.variableName), color: "var(--function)" },
  { tag: cm.tags.definition(cm.tags.variableName), fontWeight: "bold" },
]);

const theme = cm.EditorView.theme({
  "&": { backgroundColor: "var(--paper)", color: "var(--ink)", fontSize: "13px" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--ink)", lineHeight: "1.6" },
  ".cm-gutters": { backgroundColor: "var(--paper)", color: "var(--faint)", border: "none", fontFamily: "var(--mono)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--plain) 70%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--soft) !important" },
  "&.cm-focused": { outline: "none" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--plain)", color: "var(--ink)", border: "1px solid var(--edge)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--paper)" },
  ".cm-diagnostic": { fontFamily: "var(--sans)" },
  ".cm-matchingBracket": { backgroundColor: "var(--soft) !important" },
});

const light = cm.StateEffect.define();
const lit = cm.StateField.define({
  create: () => cm.Decoration.none,
  update(found, transaction) {
    found = found.map(transaction.changes);
    for (const e of transaction.effects) {
      if (!e.is(light)) continue;
      const size = transaction.state.doc.length;
      const fits = e.value.filter(([from, to]) => from < to && to <= size);
      const marks = fits.map(([from, to]) => cm.Decoration.mark({ class: "cm-lit" }).range(from, to));
      found = cm.Decoration.set(marks, true);
    }
    return found;
  },
  provide: (field) => cm.EditorView.decorations.from(field),
});

const KINDS = { operator: "class", name: "variable" };

/**
 * An editor in `parent`. `on` has what it calls: change(text), at(position or null), complete(position) and
 * hover(position), which give promises, now().
 */
export function editor(parent, on) {
  const words = new cm.Compartment();
  const complete = async (context) => {
    const word = context.matchBefore(/[A-Za-z_]\w*/);
    if (!word && !context.explicit) return null;
    const found = await on.complete(context.pos);
    if (!found || context.aborted) return null;
    const options = found.map(([label, kind, detail]) => ({ label, type: KINDS[kind] ?? kind, detail: detail.slice(0, 60) }));
    return { from: word ? word.from : context.pos, options, validFor: /^\w*$/ };
  };
  const hover = async (view, pos) => {
    const found = await on.hover(pos);
    if (!found || !found.text) return null;
    return { pos: found.from, end: found.to, above: true, create: () => ({ dom: told(found.text) }) };
  };
  const view = new cm.EditorView({
    parent,
    state: cm.EditorState.create({
      doc: "",
      extensions: [
        cm.lineNumbers(), cm.lintGutter(), cm.history(), cm.drawSelection(), cm.bracketMatching(),
        cm.closeBrackets(), cm.highlightActiveLine(), cm.highlightActiveLineGutter(), cm.highlightSpecialChars(),
        cm.indentUnit.of("  "), cm.syntaxHighlighting(style), theme, lit, words.of([]),
        cm.autocompletion({ override: [complete] }), cm.hoverTooltip(hover, { hoverTime: 400 }),
        cm.EditorView.contentAttributes.of({ "aria-label": "Program", spellcheck: "false" }),
        cm.keymap.of([
          { key: "Mod-Enter", run: () => { on.now(); return true; } },
          ...cm.closeBracketsKeymap, ...cm.defaultKeymap, ...cm.historyKeymap, ...cm.searchKeymap,
          ...cm.completionKeymap, ...cm.lintKeymap,
        ]),
        cm.EditorView.updateListener.of((update) => {
          if (update.docChanged) on.change(update.state.doc.toString());
          else if (update.selectionSet && view.hasFocus) on.at(update.state.selection.main.head);
        }),
        cm.EditorView.domEventHandlers({
          mousemove: (event) => on.at(view.posAtCoords({ x: event.clientX, y: event.clientY })),
          mouseleave: () => on.at(null),
        }),
      ],
    }),
  });
  return {
    view,
    get text() { return view.state.doc.toString(); },
    set(text) { view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }); },
    colour(rules) { view.dispatch({ effects: words.reconfigure(language(rules)) }); },
    light(ranges) { view.dispatch({ effects: light.of(ranges) }); },
    go(from, to) {
      view.dispatch({ selection: { anchor: from, head: to }, scrollIntoView: true });
      view.focus();
    },
    edit(edits) { view.dispatch({ changes: edits.map(([from, to, insert]) => ({ from, to, insert })) }); },
    findings(found) {
      const size = view.state.doc.length;
      const shown = found.filter((d) => d.placed).map((d) => {
        const from = Math.min(d.from, size), to = Math.min(Math.max(d.to, d.from + 1), size);
        return {
          from: Math.min(from, to), to, severity: d.severity, source: d.code,
          message: d.message + (d.hint ? `\nhint: ${d.hint}` : ""),
          actions: d.fix ? [{ name: d.fix.title, apply: () => this.edit(d.fix.edits) }] : [],
        };
      });
      view.dispatch(cm.setDiagnostics(view.state, shown));
    },
  };
}

/** What a name is, from Markdown with fences: as text. */
function told(markdown) {
  const box = document.createElement("div");
  box.className = "hover";
  markdown.split(/```(?:\w*)\n?/).forEach((text, k) => {
    if (!text.trim()) return;
    const part = document.createElement(k % 2 ? "pre" : "p");
    part.textContent = text.trim().replace(/`/g, "");
    box.append(part);
  });
  return box;
}
