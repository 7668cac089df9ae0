// The page: its state, what it asks, and what it shows.
import { editor } from "./language.js";
import { drawn, lightLines, make, problem } from "./parts.js";

const TABS = [
  ["graph", "Graph"], ["tree", "Schedule"], ["domains", "Domains"], ["decisions", "Decisions"],
  ["kernels", "Kernels"], ["code", "Code"], ["cost", "Cost"], ["run", "Run"],
];
const CHECK_MS = 150, VIEW_MS = 350, LINK_MS = 400, MOST_LINK = 100000;
const $ = (id) => document.getElementById(id);
const page = crypto.randomUUID();

/** All that a link carries. */
const state = { text: "", op: null, sizes: {}, dtypes: {}, ranks: {}, layers: ["loop", "stitch", "pack"], target: "cpu", tab: "graph" };
let limit = 60, shown = null, shownFor = "", code = null, wrong = false, edits, later, links;

// --- requests ---

async function ask(what, more = {}, signal = undefined) {
  const { tab, ...asked } = state;
  const body = JSON.stringify({ page, state: { ...asked, text: text.text }, ...more });
  const answer = await fetch(what, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
  if (answer.status === 409) return null;
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
  return answer.json();
}

const text = editor($("editor"), {
  change: changed,
  at: (place) => { if (code) lightLines($("panel"), code, place)?.scrollIntoView({ block: "nearest" }); },
  complete: async (at) => (await ask("complete", { at }).catch(() => null))?.proposals,
  hover: (at) => ask("hover", { at }).catch(() => null),
  now: () => look(true),
});

function changed() {
  clearTimeout(edits);
  clearTimeout(later);
  stale(true);
  edits = setTimeout(check, CHECK_MS);
  remember();
}

/** Findings and what may be chosen, then the tab. */
async function check() {
  const asked = text.text;
  let found;
  try {
    found = await ask("check");
  } catch (error) {
    return lost(error);
  }
  if (!found || asked !== text.text) return;
  const all = [...(found.found ?? []), ...(found.errors ?? [])];
  text.findings(all);
  wrong = all.some((d) => d.severity === "error");
  $("problems").replaceChildren(...all.map((d) => problem(d, (x) => text.go(x.from, x.to), (x) => text.edit(x.fix.edits))));
  if (found.controls) choices(found.controls);
  clearTimeout(later);
  if (wrong) return failed(all.filter((d) => d.severity === "error"), true);
  later = setTimeout(() => look(), Math.max(0, VIEW_MS - CHECK_MS));
}

let going = null;

/** Show the tab; a run waits for its button. */
async function look(run = false) {
  if (wrong) return;
  const asked = JSON.stringify([text.text, { ...state, text: "" }]);
  if (asked === shownFor && !run) return stale(false);
  going?.abort();
  if (state.tab === "run" && !run) {
    const button = make("button", { class: "main", type: "button", onclick: () => look(true) }, "Run");
    return show([make("p", { class: "note" }, button), note("On random inputs, compared with the reference.")], null, asked);
  }
  const mine = (going = new AbortController());
  busy(true);
  try {
    const found = await ask("view", { view: state.tab }, mine.signal);
    if (!found || going !== mine) return;
    if (found.errors) failed(found.errors, false, found.bug);
    else show(drawn(found.parts, (ranges) => text.light(ranges)), found.parts.find((p) => p.statements?.length), asked);
  } catch (error) {
    if (error.name !== "AbortError") lost(error);
  } finally {
    if (going === mine) { going = null; busy(false); }
  }
}

const note = (words) => make("p", { class: "note faint" }, words);

function show(elements, part, asked) {
  const panel = $("panel"), same = shown === state.tab;
  const top = panel.scrollTop;
  panel.replaceChildren(...elements);
  panel.scrollTop = same ? top : 0;
  if (state.tab === "run" && part !== null) {
    panel.prepend(make("p", { class: "note" }, make("button", { class: "main", type: "button", onclick: () => look(true) }, "Run again")));
  }
  shown = state.tab;
  shownFor = asked;
  code = part ?? null;
  stale(false);
}

/** Errors in place of a view; those of the text stand below the editor already. */
function failed(errors, below, bug = "") {
  shown = null;
  shownFor = "";
  code = null;
  const first = below ? [note(`Mend the ${errors.length > 1 ? `${errors.length} errors` : "error"} in the program to see this view.`)] : [];
  const trace = bug ? [make("details", {}, make("summary", {}, "The trace, for a report"), make("pre", {}, bug))] : [];
  $("panel").replaceChildren(...first, ...errors.map((d) => problem(d, (x) => text.go(x.from, x.to))), ...trace);
  stale(false);
}

function lost(error) {
  const why = error instanceof TypeError ? "The explorer does not answer: it was ended, or `polyfuse explore` runs anew." : String(error.message);
  shownFor = "";
  code = null;
  $("panel").replaceChildren(make("p", { class: "note bad" }, why));
  stale(false);
  busy(false);
}

const stale = (is) => $("panel").classList.toggle("stale", is && shown !== null);

let clock = null;

function busy(is) {
  clearInterval(clock);
  clock = null;
  const box = $("progress"), began = Date.now();
  $("panel").setAttribute("aria-busy", String(is));
  if (!is) return box.classList.remove("busy");
  stale(true);
  clock = setInterval(() => {
    const seconds = Math.round((Date.now() - began) / 1000);
    box.classList.add("busy");
    const words = seconds < 2 ? "compiling" : `compiling for ${seconds} s; ended after ${limit} s`;
    if (box.lastElementChild.textContent !== words) box.lastElementChild.textContent = words;
  }, 300);
}

// --- settings ---

/** Fields for what the operator has; a field that is empty has its default. */
function choices(found) {
  const ops = $("op");
  $("op-label").hidden = found.ops.length < 2;
  ops.replaceChildren(...found.ops.map((n) => make("option", { value: n, selected: n === found.op }, n)));
  const shape = JSON.stringify([found.sizes, found.dtypes.map((d) => [d.name, d.kind]), found.ranks.map((r) => r.name)]);
  const box = $("sizes");
  if (box.dataset.shape === shape) return;
  box.dataset.shape = shape;
  box.replaceChildren(
    ...found.sizes.map((s) => number("sizes", s.name, s.default)),
    ...found.dtypes.map((d) => dtype(d)),
    ...found.ranks.map((r) => number("ranks", r.name, r.value, "axes of ")),
  );
}

function number(of, name, usual, before = "") {
  const field = make("input", {
    type: "text", inputmode: "numeric", placeholder: usual, size: 6, "data-name": name, "aria-label": `${before}${name}`,
  });
  field.value = state[of][name] ?? "";
  field.addEventListener("input", () => {
    const word = field.value.replace(/[_\s]/g, "");
    field.classList.toggle("wrong", !/^\d{0,12}$/.test(word));
    if (field.classList.contains("wrong")) return;
    if (word) state[of][name] = Number(word);
    else delete state[of][name];
    chosen(of === "ranks");
  });
  return make("label", {}, `${before}${name}`, field);
}

const TYPES = {
  float: ["f32", "f64", "f16", "bf16"], int: ["i32", "i64", "i16", "i8", "u8"],
};

function dtype(d) {
  const known = TYPES[d.kind] ?? [...TYPES.float, ...TYPES.int];
  const names = known.includes(d.value) ? known : [d.value, ...known];
  const field = make("select", { "aria-label": `type ${d.name}` }, ...names.map((n) => make("option", { selected: n === (state.dtypes[d.name] ?? d.value) }, n)));
  field.addEventListener("change", () => { state.dtypes[d.name] = field.value; chosen(false); });
  return make("label", {}, d.name, field);
}

/** A setting was changed; `again`: what may be chosen depends on it. */
function chosen(again) {
  remember();
  clearTimeout(later);
  if (again) check();
  else later = setTimeout(() => look(), VIEW_MS);
}

function settings() {
  for (const box of $("layers").querySelectorAll("input")) {
    box.checked = state.layers.includes(box.value);
    box.onchange = () => {
      state.layers = [...$("layers").querySelectorAll("input:checked")].map((b) => b.value);
      chosen(false);
    };
  }
  $("target").value = state.target;
  $("target").onchange = () => { state.target = $("target").value; chosen(false); };
  $("op").onchange = () => { state.op = $("op").value; $("sizes").dataset.shape = ""; chosen(true); };
  $("sizes").dataset.shape = "";
}

function tabs() {
  const select = (name, focus) => {
    state.tab = name;
    for (const b of $("tabs").children) {
      const on = b.dataset.tab === name;
      b.setAttribute("aria-selected", String(on));
      b.tabIndex = on ? 0 : -1;
      if (on && focus) b.focus();
      if (on) $("panel").setAttribute("aria-labelledby", b.id);
    }
  };
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -TABS.length, End: TABS.length };
  $("tabs").replaceChildren(...TABS.map(([name, label]) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "data-tab": name, "aria-controls": "panel",
    onclick: () => { select(name); remember(); look(); },
    onkeydown: (event) => {
      if (!(event.key in step)) return;
      event.preventDefault();
      const at = TABS.findIndex(([n]) => n === state.tab) + step[event.key];
      select(TABS[Math.max(0, Math.min(TABS.length - 1, at))][0], true);
      remember();
      look();
    },
  }, label)));
  select(TABS.some(([n]) => n === state.tab) ? state.tab : "graph");
}

function divider() {
  const bar = $("divider"), panes = $("panes");
  const set = (share) => {
    share = Math.max(15, Math.min(80, share));
    document.documentElement.style.setProperty("--left", `${share}%`);
    bar.setAttribute("aria-valuenow", String(Math.round(share)));
    localStorage.setItem("left", String(share));
  };
  set(Number(localStorage.getItem("left")) || 42);
  bar.onpointerdown = (event) => bar.setPointerCapture(event.pointerId);
  bar.onpointermove = (event) => {
    if (bar.hasPointerCapture(event.pointerId)) set(((event.clientX - panes.offsetLeft) / panes.offsetWidth) * 100);
  };
  bar.onkeydown = (event) => {
    const by = { ArrowLeft: -3, ArrowRight: 3 }[event.key];
    if (by) set(Number(bar.getAttribute("aria-valuenow")) + by);
  };
  bar.ondblclick = () => set(42);
}

// --- the library ---

async function library() {
  const found = await ask("library");
  if (!found) return;
  text.colour(found.rules);
  const texts = new Map();
  for (const family of found.library) {
    const group = make("optgroup", { label: family.family });
    for (const op of family.ops) {
      texts.set(op.name, op.text);
      group.append(make("option", { value: op.name, title: op.signature }, op.name));
    }
    $("library").append(group);
  }
  $("library").onchange = () => {
    const name = $("library").value;
    if (!texts.has(name)) return;
    Object.assign(state, { op: null, sizes: {}, dtypes: {}, ranks: {} });
    $("sizes").dataset.shape = "";
    text.set(texts.get(name));
    $("library").value = "";
  };
}

// --- links ---

const squeezed = async (bytes, Stream) => {
  const stream = new Blob([bytes]).stream().pipeThrough(new Stream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

async function fragment() {
  const bytes = new TextEncoder().encode(JSON.stringify({ ...state, text: text.text }));
  const small = await squeezed(bytes, CompressionStream);
  let word = "";
  for (const byte of small) word += String.fromCharCode(byte);
  return `#1.${btoa(word).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`;
}

async function read(hash) {
  if (!hash.startsWith("#1.")) throw new Error("another version");
  const word = atob(hash.slice(3).replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = await squeezed(Uint8Array.from(word, (c) => c.charCodeAt(0)), DecompressionStream);
  const found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  if (typeof found !== "object" || found === null || typeof found.text !== "string") throw new Error("no text");
  return found;
}

/** Keep the state in the address, once nothing has changed for a moment. */
function remember() {
  clearTimeout(links);
  links = setTimeout(async () => {
    const found = await fragment();
    history.replaceState(null, "", location.pathname + (found.length <= MOST_LINK ? found : ""));
  }, LINK_MS);
}

/** Take the state of the address, if it has one. */
async function follow() {
  if (location.hash.length < 2) return false;
  try {
    const found = await read(location.hash);
    for (const key of Object.keys(state)) if (key in found) state[key] = found[key];
    for (const key of ["sizes", "dtypes", "ranks"]) if (typeof state[key] !== "object" || !state[key]) state[key] = {};
    if (!Array.isArray(state.layers)) state.layers = ["loop", "stitch", "pack"];
    return true;
  } catch {
    say("The link cannot be read; it was cut off, or another version made it.");
    return false;
  }
}

function say(words) {
  $("toast")?.remove();
  const box = make("div", { id: "toast", role: "status" }, words);
  document.body.append(box);
  setTimeout(() => box.remove(), 3500);
}

async function copy() {
  const found = await fragment();
  if (found.length > MOST_LINK) return say("The program is too long for a link.");
  const address = location.origin + location.pathname + found;
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    say("The link is in the clipboard.");
  } catch {
    say("The address of this page is the link.");
  }
}

function begin() {
  settings();
  tabs();
  shownFor = "";
  if (text.text === state.text) check();
  else text.set(state.text);
}

async function main() {
  divider();
  $("link").onclick = copy;
  const first = await (await fetch("start")).json();
  limit = first.limit;
  $("file").textContent = first.name;
  $("file").title = first.folder ? `in ${first.folder}` : "";
  document.title = `${first.name} · polyfuse explorer`;
  state.text = first.text;
  await follow();
  begin();
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  addEventListener("hashchange", async () => { if (await follow()) begin(); });
  await library();
}

main().catch(lost);
