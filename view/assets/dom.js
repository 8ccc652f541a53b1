// Elements, numbers and text. Text enters a page here, as text.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes, listeners (onclick: f), properties of its style ($x: …) and children.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("$")) element.style.setProperty(name.slice(1), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

// Replaces an element's content.
export function show(element, ...children) {
  element.replaceChildren();
  return fill(element, {}, children);
}

// Control characters and those that turn the direction of writing, as symbols. Line feeds stay.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCodePoint(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu,
      (c) => "\u27e8U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");
}

const MINUS = "\u2212";

export function isNumber(x) {
  return typeof x === "number" && Number.isFinite(x);
}

// A number with so many significant digits as a reader needs; – for none.
export function num(x, digits = 3) {
  if (!isNumber(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  let text;
  if (Number.isInteger(x) && size < 1e6) text = String(x);
  else if (size >= 1e5 || size < 1e-4) text = x.toExponential(Math.max(digits - 1, 0)).replace("e+", "e");
  else text = x.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
  return text.replace("-", MINUS);
}

export function fixed(x, places) {
  return isNumber(x) ? x.toFixed(places).replace("-", MINUS) : "–";
}

export function signed(x, places = 3) {
  if (!isNumber(x)) return "–";
  const text = fixed(Math.abs(x), places);
  return x === 0 ? text : (x > 0 ? "+" : MINUS) + text;
}

// Every digit that the number has.
export function exact(x) {
  return isNumber(x) ? String(x).replace(/-/g, MINUS) : "–";
}

export function percent(x, places = 0) {
  return isNumber(x) ? fixed(100 * x, places) + " %" : "–";
}

export function seconds(x) {
  if (!isNumber(x)) return "–";
  if (x < 10) return fixed(x, 1) + " s";
  if (x < 60) return Math.round(x) + " s";
  const whole = Math.round(x);
  if (x < 3600) return Math.floor(whole / 60) + " min " + String(whole % 60).padStart(2, "0") + " s";
  return Math.floor(whole / 3600) + " h " + String(Math.floor((whole % 3600) / 60)).padStart(2, "0") + " min";
}

export function bytes(x) {
  if (!isNumber(x)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (x >= 999.5 && at < units.length - 1) { x /= 1000; at += 1; }
  return (at === 0 || x >= 100 ? Math.round(x) : fixed(x, 1)) + " " + units[at];
}

export function grouped(x) {
  return isNumber(x) ? Math.round(x).toLocaleString("en-US").replaceAll(",", "\u202f") : "–";
}

export function ago(unix, now = Date.now() / 1000) {
  return unix > 0 ? seconds(Math.max(0, now - unix)) + " ago" : "–";
}

// A worker as the terminal's tables name it, `host:pid/index`; its whole name is host-boot-namespace:pid:start/index.
export function shortName(name) {
  const [, host, pid, index] = /^(.+)-[^-]*-[^-:]*:(\d+):[^/]*(?:\/(\d+))?$/.exec(name) ?? [];
  if (host) return `${host}:${pid}/${index ?? 0}`;
  return name.length > 26 ? name.slice(0, 12) + "…" + name.slice(-12) : name;
}

// `#/path?query` of a page.
export function link(path, query = {}) {
  const pairs = Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== "");
  const text = new URLSearchParams(pairs).toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

export function a(href, ...children) {
  return h("a", { href }, ...children);
}

export function episodeLink(run, row, query = {}) {
  return link(["runs", run, "episodes", ...row.part.split("/"), row.k], query);
}

const OUTCOMES = {
  solved: ["✓", "good"], failed: ["✕", "bad"], horizon: ["◷", "bad"], length: ["⇥", "bad"],
  env_fault: ["⚠", "warn"], no_room: ["⚠", "warn"], no_turn: ["⚠", "warn"], no_message: ["⚠", "warn"], cancelled: ["∅", "warn"],
};

// An outcome by sign, word and colour.
export function outcome(name) {
  const [sign, kind] = OUTCOMES[name] ?? ["?", "warn"];
  return h("span", { class: "outcome " + kind }, h("span", { "aria-hidden": "true" }, sign), " " + name.replace("_", " "));
}

// A table: columns are [head, class], rows lists of cells (text or elements).
export function table(caption, columns, rows, attributes = {}) {
  const head = columns.map(([name, kind, title]) => h("th", { scope: "col", class: kind, title }, name));
  const body = rows.map((cells) => h("tr", cells.attributes ?? {}, cells.map((cell, at) =>
    h(at === 0 && columns[0][2] === "row" ? "th" : "td", { class: columns[at][1] }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", attributes, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

// Name and value pairs on one line.
export function facts(pairs) {
  const all = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "facts" }, all.map(([name, value, title]) =>
    h("div", { title }, h("dt", {}, name), h("dd", {}, value))));
}

// A choice of one; calls back with its value.
export function choice(label, options, value, onchange) {
  const all = options.map(([key, text]) =>
    h("option", { value: key, selected: key === value }, text));
  return h("label", { class: "choice" }, h("span", {}, label),
    h("select", { onchange: (e) => onchange(e.target.value) }, all));
}
