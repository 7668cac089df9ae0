// What the parts of a view become: elements whose texts are texts.

/** An element with attributes and children; texts among them stay texts. */
export function make(name, attributes = {}, ...inner) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...inner.filter((x) => x != null));
  return made;
}

/** The elements of the parts; `lit(ranges)` is told where the line under the pointer came from. */
export function drawn(parts, lit) {
  return parts.flatMap((part) => DRAWN[part.kind](part, lit));
}

const headed = (part, ...inner) => [...(part.title ? [make("h2", {}, part.title)] : []), ...inner];

const DRAWN = {
  note: (part) => [make("p", { class: `note ${part.tone}` }, part.text)],
  facts: (part) => [
    make("dl", {}, ...part.items.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
  ],
  text: (part) => headed(part, make("pre", { class: "text", tabindex: "0" }, part.text)),
  table,
  picture: (part) => headed(
    part, part.about ? make("p", { class: "note faint" }, part.about) : null, picture(part),
  ).filter((x) => x),
  decisions: (part) => headed(part, make("ul", { class: "decisions" }, ...part.items.map(decision))),
  code: listing,
};

const LEAST = 0.62;

function picture(part) {
  const found = new DOMParser().parseFromString(part.svg, "image/svg+xml");
  const wrong = found.querySelector("parsererror");
  const box = make("div", { class: "picture scroll", tabindex: "0", role: "group", "aria-label": part.title });
  const svg = document.importNode(found.documentElement, true);
  // Wide pictures shrink to the pane, as far as their text can be read.
  svg.style.minWidth = `${LEAST * (Number(svg.getAttribute("width")) || 0)}px`;
  box.append(wrong ? "This picture cannot be drawn." : svg);
  return box;
}

function table(part) {
  const kind = (k, text) => (k < part.left ? (text.length > 48 ? "words prose" : "words") : null);
  const head = make("tr", {}, ...part.head.map((h, k) => make("th", { class: kind(k, h), scope: "col" }, h)));
  const rows = part.rows.map((row) => make("tr", {}, ...row.map((c, k) => make("td", { class: kind(k, c) }, c))));
  const whole = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  return headed(part, make("div", { class: "scroll", tabindex: "0" }, whole));
}

function decision(item) {
  const more = [
    item.witness ? ` For example ${item.witness}.` : "", item.saves ? ` Saves ${item.saves}.` : "",
  ].join("");
  return make(
    "li", { class: item.taken ? "taken" : "left" },
    make("b", {}, item.name), " ", make("code", {}, item.subject), ": ", item.reason,
    more ? make("span", { class: "more" }, more) : null,
  );
}

// --- code ---

const WORDS = /(\/\/.*$|\/\*.*?\*\/|"(?:[^"\\]|\\.)*")|(^\s*#\s*\w+)|\b(const|static|for|while|if|else|return|void|extern|struct|template|typename|switch|case|break|continue|inline|auto|using|namespace|do|constexpr|sizeof|__restrict|__restrict__|__global__|__device__|__shared__|__launch_bounds__|__forceinline__|__attribute__)\b|\b(float|double|int|char|bool|unsigned|long|short|pf_\w+?(?:64|32|16|8)|__half|__nv_bfloat16)\b|\b(0x[0-9a-fA-F.]+(?:p[+-]?\d+)?[fuUlL]*|\d[\d.]*(?:e[+-]?\d+)?[fuUlL]*)\b/g;
const CLASSES = ["c", "p", "k", "t", "n"];

function coloured(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(WORDS)) {
    const k = found.slice(1).findIndex((g) => g !== undefined);
    parts.push(text.slice(last, found.index), make("span", { class: CLASSES[k] }, found[0]));
    last = found.index + found[0].length;
  }
  return [...parts, text.slice(last)];
}

const TINTS = ["blue", "orange", "green", "purple", "teal", "pink", "olive"];
const TINT = {
  blue: "#5a8fc8", orange: "#d08b4a", green: "#4fa377", purple: "#9a78dd", teal: "#3f9ca6", pink: "#c674a6", olive: "#a99238",
};

/** Code with the places that each line came from; lines before the first of these are folded. */
function listing(part, lit) {
  const origins = part.origins ?? [];
  const statements = part.statements ?? [];
  const tint = (k) => TINT[TINTS[(origins[k]?.[0] ?? 0) % TINTS.length]];
  const line = (text, k) => {
    const from = (origins[k] ?? []).map((s) => statements[s]);
    const made = make("span", { class: `line${from.length ? " from" : ""}`, "data-n": k + 1 }, ...coloured(text));
    if (from.length) {
      if (from.length === 1) made.style.setProperty("--tint", tint(k));
      made.title = from.map((s) => s.label).join("\n");
      made.addEventListener("mouseenter", () => lit(from.filter((s) => s.to > s.from).map((s) => [s.from, s.to])));
      made.addEventListener("mouseleave", () => lit([]));
    }
    return made;
  };
  const rows = part.lines.map(line);
  const first = part.first ?? 0;
  const folded = first > 3
    ? make("details", {}, make("summary", {}, `${first} lines that all kernels share`),
      make("div", { class: "listing" }, make("div", { class: "rows" }, ...rows.slice(0, first))))
    : null;
  const words = statements.length
    ? "Point at a line to see the statement that it came from, at a statement to see its lines."
    : "";
  return [
    make("h2", {}, part.language), words ? make("p", { class: "legend" }, words) : "", folded ?? "",
    make("div", { class: "listing", tabindex: "0" }, make("div", { class: "rows" }, ...rows.slice(folded ? first : 0))),
  ].filter((x) => x);
}

/** Light up the lines of a listing that came from a place of the text; none if it is null. */
export function lightLines(panel, part, at) {
  for (const row of panel.querySelectorAll(".line.lit")) row.classList.remove("lit");
  if (!part || at === null) return;
  const here = (s) => s.from <= at && at <= s.to && s.to > s.from;
  const mine = new Set(part.statements.flatMap((s, k) => (here(s) ? [k] : [])));
  if (!mine.size) return;
  const rows = panel.querySelectorAll(".line");
  let seen = null;
  for (const row of rows) {
    const found = part.origins[row.dataset.n - 1] ?? [];
    if (found.length && found.some((s) => mine.has(s))) {
      row.classList.add("lit");
      if (found.length === 1) seen ??= row;
    }
  }
  return seen;
}

// --- problems ---

/** A finding, with what leads to its place and mends it. */
export function problem(d, go, fix) {
  return make(
    "div", { class: `problem ${d.severity}` },
    make("b", { title: `polyfuse explain ${d.code}` }, d.code),
    d.placed ? make("button", { class: "place", type: "button", onclick: () => go(d) }, `${d.line}:${d.column}`) : null,
    d.message,
    d.fix && fix ? make("button", { class: "fix", type: "button", onclick: () => fix(d) }, d.fix.title) : null,
    d.hint ? make("div", { class: "hint" }, `hint: ${d.hint}`) : null,
    ...d.related.map((r) => make("div", { class: "hint" }, r)),
  );
}
