// An episode: its turns, the tokens with their streams, its group, and why it has this advantage.

import { h, s, a, show, choice, episodeLink, exact, facts, fixed, isNumber, link, num, outcome, shortName, signed, table } from "./dom.js";
import { askOnce, ask, bundledRun, runPath } from "./data.js";
import { groupDots, tokenStrip, lineChart } from "./charts.js";
import { drawScene } from "./scenes.js";

// What tokens can be coloured by: key, name, of a token (or none), and whether it has two directions.
const STREAMS = [
  ["none", "nothing", () => null],
  ["surprise", "−log-prob when sampled", (q, t) => q.mask[t] && isNumber(q.sampled[t]) ? -q.sampled[t] : null],
  ["entropy", "entropy", (q, t) => q.mask[t] ? q.entropies?.[t] : null],
  ["advantage", "advantage", (q, t) => q.mask[t] ? q.advantages?.[t] : null, true],
  ["mismatch", "old − sampled log-prob", (q, t) => q.mask[t] && q.old ? q.old[t] - q.sampled[t] : null, true],
  ["kl", "log-prob − reference", (q, t) => q.mask[t] && q.reference ? q.old[t] - q.reference[t] : null, true],
  ["value", "value", (q, t) => q.mask[t] ? q.values?.[t] : null, true],
  ["rescored", "rescored − old log-prob", (q, t) => q.mask[t] && q.rescored && q.old ? q.rescored[t] - q.old[t] : null, true],
];
// What a turn's tags say.
const INVALID = "The environment's parser found no action in what the policy said; what was sent instead, if anything, stands below.";
const NORMALISED = "The action was not written as the environment wants it: it was cleaned before it was sent.";
const CUT = "The turn ended at the limit of tokens, not by itself.";
// Tokens of one block; blocks out of view hold none.
const BLOCK = 300;

export async function episodePage(root, [run, n, stage, p, k], query, go) {
  const part = [n, stage, p];
  const question = runPath(run, "parts", ...part, "episodes", k);
  const e = await askOnce(question);
  const at = Number(k);
  e.sequences.forEach((q) => { q.rescored = null; q.unread = !q.pieces.some((one) => one !== ""); });
  let refused = null;
  if (query.policy !== undefined && query.policy !== "") {
    try {
      const other = await askOnce(question + "/rescored/" + encodeURIComponent(query.policy));
      e.sequences.forEach((q, i) => { q.rescored = other.log_probs[i]; });
    } catch (error) { refused = error.message; }
  }
  const available = STREAMS.filter(([key, , of]) => key === "none" || e.sequences.some((q) => q.mask.some((kept, t) => kept && isNumber(of(q, t)))));
  const usual = e.advantage !== null && available.some(([key]) => key === "surprise") ? "surprise" : available.at(1)?.[0] ?? "none";
  const colour = available.find(([key]) => key === (query.colour ?? usual)) ?? available[0];
  const flat = flatten(e);
  const scale = Math.max(1e-9, quantile(flat.map(([q, t]) => colour[2](q, t)).filter(isNumber).map(Math.abs), 0.99));

  const inspector = h("section", { class: "card inspector", "aria-label": "Token", "aria-live": "polite" });
  const why = h("section", { class: "card why", "aria-label": "Why this advantage" }, h("h2", {}, "Why this advantage"), h("p", { class: "quiet" }, "…"));
  const spans = new Map();
  const observers = [];
  let strip;
  const pick = (index, follow, far = false) => {
    const [q, t, place] = flat[index] ?? [];
    if (!q) return;
    spans.get(root.picked)?.classList.remove("picked");
    root.picked = index;
    strip?.mark(index);
    inspect(inspector, q, t, place, index);
    if (follow) {
      turns[place.turn]?.scrollIntoView({ block: "nearest" });
      requestAnimationFrame(() => { fillAll(turns[place.turn] ?? context); const own = spans.get(index); if (own?.closest("details")) own.closest("details").open = true; own?.classList.add("picked"); if (far && own) centre(own); else own?.scrollIntoView({ block: "nearest" }); });
    } else spans.get(index)?.classList.add("picked");
  };
  const draw = (indices) => indices.map((index) => {
    const [q, t, place] = flat[index];
    const v = colour[2](q, t);
    const piece = q.pieces[t];
    const text = piece === "" && q.unread ? "‹" + q.ids[t] + "›" : piece;
    // Before the first turn nothing is trained on, which its heading says.
    const kind = q.mask[t] ? "t" : place.turn < 0 ? "t quiet" : "t masked";
    const strength = isNumber(v) ? Math.min(1, Math.abs(v) / scale) : 0;
    const span = h("span", { class: kind + (isNumber(v) && strength > 0.02 ? (v < 0 ? " down" : colour[3] ? " up" : " size") : ""),
      "data-i": index }, shownPiece(text));
    if (strength > 0.02) span.style.setProperty("--v", (6 + 68 * strength).toFixed(0) + "%");
    spans.set(index, span);
    return span;
  });
  const lazy = (indices) => {
    const block = h("span", { class: "block" });
    block.indices = indices;
    block.fill = () => { if (block.indices) { block.append(...draw(block.indices)); block.indices = null; } };
    return block;
  };
  const tokens = (indices) => {
    const all = [];
    for (let from = 0; from < indices.length; from += BLOCK) all.push(lazy(indices.slice(from, from + BLOCK)));
    const text = h("div", { class: "tokens" }, all);
    const watch = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (entry.isIntersecting) { entry.target.querySelectorAll(".block").forEach((b) => b.fill()); watch.unobserve(entry.target); }
    }), { rootMargin: "600px" });
    watch.observe(text);
    observers.push(watch);
    return text;
  };
  const fillAll = (element) => element?.querySelectorAll(".block").forEach((b) => b.fill());

  const turns = e.turns.map((turn, index) => turnCard(e, turn, index, flat, tokens));
  const strips = tokenStrip(flat.map(([q, t]) => colour[0] === "none" ? (q.mask[t] ? 1 : null) : colour[2](q, t)), {
    turns: e.turns.map((_, index) => range(flat, index)), diverging: colour[3] ?? false,
    label: colour[1] + " of every token, in order; the turns alternate", onpick: (index) => pick(index, true),
  });
  strip = strips;
  const first = range(flat, -1);
  const context = first[1] > first[0]
    ? h("details", { class: "card prompt", open: e.turns.length < 40 }, h("summary", {}, h("h2", {}, "Prompt"), h("span", { class: "meta" }, (first[1] - first[0]) + " tokens, not trained on")), tokens(indices(first)))
    : h("details", { class: "card prompt", open: true }, h("summary", {}, h("h2", {}, "Prompt")), h("pre", {}, e.prompt));
  // The list that one came from, else the part.
  const place = Number(query.at);
  const listed = query.from !== undefined && Number.isInteger(place) && !bundledRun
    ? await ask(runPath(run, "episodes") + "?" + new URLSearchParams([...new URLSearchParams(query.from), ["cursor", Math.max(0, place - 1)], ["limit", 3]])).catch(() => null) : null;
  const { token: _, ...rest } = query;
  const neighbours = (step) => {
    if (!listed) return at + step >= 0 && at + step < e.episodes ? link(["runs", run, "episodes", ...part, at + step], rest) : null;
    const row = place + step < 0 ? null : listed.rows[place + step - Math.max(0, place - 1)];
    return row ? episodeLink(run, row, { ...rest, at: place + step }) : null;
  };
  const transcript = h("div", { class: "transcript", onclick: (event) => {
    const index = event.target.dataset?.i;
    if (index !== undefined) pick(Number(index), false);
  }, onpointerover: (event) => {
    const index = event.target.dataset?.i;
    if (index !== undefined) { const [q, t, place] = flat[Number(index)]; inspect(inspector, q, t, place, Number(index)); }
  } }, context, turns,
  e.judgement?.reason ? h("p", { class: "card" }, h("b", {}, e.agent ? "The judge: " : "The reward function: "), e.judgement.reason) : null,
  e.fault ? h("p", { class: "card warn" }, "The environment failed: ", e.fault) : null);

  show(root,
    h("div", { class: "head" },
      h("h1", { tabindex: "-1" }, e.task, h("small", {}, ` group ${e.group} · sample ${e.sample}${e.greedy ? " · greedy" : ""}`)),
      h("nav", { class: "steps", "aria-label": listed ? "Episodes of the list" : "Episodes of this part" },
        neighbours(-1) ? a(neighbours(-1), "← previous ", h("kbd", {}, "p")) : null,
        h("span", {}, listed ? `${place + 1} of ${listed.total} listed` : `${at + 1} of ${e.episodes} in its part`),
        neighbours(1) ? a(neighbours(1), "next ", h("kbd", {}, "n"), " →") : null)),
    facts([
      ["outcome", outcome(e.outcome)], ["reward", num(e.reward, 4)],
      ...Object.entries(e.judgement?.components ?? {}).map(([name, value]) => ["of it " + name, num(value, 4)]),
      ["advantage", e.advantage === null ? null : h("b", { class: "signed " + direction(e.advantage) }, signed(e.advantage, 4))],
      ["turns", e.turns.length], ["tokens", `${flat.filter(([q, t]) => q.mask[t]).length} sampled of ${flat.length}`],
      ["from", a(link(["runs", run, "parts", ...part]), part.join("/"))], ["worker", e.worker && h("span", { title: e.worker }, shortName(e.worker))],
      ["slot", e.slot], ["agent", e.agent?.words],
    ]),
    h("div", { class: "toolbar" },
      choice("Colour tokens by", available.map(([key, text]) => [key, text]), colour[0], (value) => go(["runs", run, "episodes", ...part, k], { ...query, colour: value })),
      legend(colour, scale),
      e.sequences.some((q) => q.old) && !bundledRun ? h("label", { class: "choice" }, h("span", {}, "Rescore with the policy of iteration"),
        h("input", { type: "number", min: "0", step: "1", value: query.policy ?? "", onchange: (event) => go(["runs", run, "episodes", ...part, k], { ...query, policy: event.target.value, colour: event.target.value === "" ? "" : "rescored" }) })) : null,
      h("span", { class: "keys quiet" }, h("kbd", {}, "j"), " ", h("kbd", {}, "k"), " turn  ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " token")),
    refused ? h("p", { class: "warn card" }, refused) : null,
    flat.length ? strips.svg : null,
    h("div", { class: "columns" }, transcript,
      h("aside", { class: "side" }, why, groupCard(run, e, part), inspector)));
  const drawn = askOnce(question + "/scenes").then(({ scenes, why }) => {
    if (!scenes) { context.after(h("p", { class: "quiet no-scene" }, "No pictures of the environment: ", why, ".")); return; }
    const start = drawScene(scenes.start, true);
    if (start) context.after(h("section", { class: "card start", "aria-label": "The environment at the start" }, h("h2", {}, "Start"), start));
    // What stands beside the text, and the page that was acted on, come before it; the rest is what came of it.
    turns.forEach((card, index) => {
      const scene = drawScene(scenes.turns[index]);
      if (scene) card.querySelector(["crafting", "passages"].includes(scenes.turns[index].kind) ? ".observation" : "header").after(scene);
    });
  }, (error) => context.after(h("p", { class: "quiet no-scene" }, "No pictures of the environment: ", error.message)));
  show(inspector, h("h2", {}, "Token"), h("p", { class: "quiet" }, "Point at a token, or go through them with ← and →."));

  let credited = null;
  if (e.stage === "rollout" || e.stage === "reward") {
    credited = askOnce(question + "/credit").then((credit) => explain(why, credit, e, flat, run), (error) => show(why, h("h2", {}, "Why this advantage"), h("p", { class: "warn" }, error.message)));
  } else show(why, h("h2", {}, "Why no advantage"), h("p", {}, "An evaluation trains nothing."));

  let turn = -1;
  const keys = (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const goTurn = (step) => {
      turn = Math.min(turns.length - 1, Math.max(0, turn + step));
      turns[turn]?.focus({ preventScroll: true });
      turns[turn]?.scrollIntoView({ block: "start" });
    };
    if (event.key === "j") goTurn(1);
    else if (event.key === "k") goTurn(-1);
    else if (event.key === "n" && neighbours(1)) location.hash = neighbours(1);
    else if (event.key === "p" && neighbours(-1)) location.hash = neighbours(-1);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      if (event.target.closest(".scroll")) return;
      pick(Math.min(flat.length - 1, Math.max(0, (root.picked ?? -1) + (event.key === "ArrowRight" ? 1 : -1))), true);
      event.preventDefault();
    }
  };
  document.addEventListener("keydown", keys);
  root.picked = undefined;
  // Pictures of the environment move the text, and on a narrow screen the explanation does, so they come first.
  const wanted = query.token === undefined ? null : Number(query.token);
  if (wanted !== null && flat[wanted]) Promise.all([drawn, credited]).then(() => requestAnimationFrame(() => setTimeout(() => pick(wanted, true, true))));
  else if (wanted !== null) show(inspector, h("h2", {}, "Token"), h("p", { class: "warn" }, `There is no token ${query.token}; they are numbered 0 to ${flat.length - 1}.`));
  return () => { document.removeEventListener("keydown", keys); observers.forEach((o) => o.disconnect()); };
}

// Brings an element to the middle, again as long as text above it is still being filled in.
function centre(element, tries = 12) {
  element.scrollIntoView({ block: "center" });
  const [top, scrolled] = [element.getBoundingClientRect().top, window.scrollY];
  setTimeout(() => {
    const moved = Math.abs(element.getBoundingClientRect().top - top) > 2 && window.scrollY === scrolled;
    if (tries > 0 && element.isConnected && moved) centre(element, tries - 1);
  }, 100);
}

// Every token in order of time: [sequence, token, {turn, role}].
function flatten(e) {
  const owner = e.sequences.map((q) => new Array(q.ids.length).fill(null));
  e.turns.forEach((turn, index) => {
    for (let t = turn.context[0]; t < turn.context[1]; t += 1) owner[turn.sequence][t] ??= { turn: index - 1, role: "context" };
    for (let t = turn.policy[0]; t < turn.policy[1]; t += 1) owner[turn.sequence][t] = { turn: index, role: "policy" };
  });
  let last = { turn: -1, role: "context" };
  return e.sequences.flatMap((q, i) => q.ids.map((_, t) => {
    last = owner[i][t] ?? { turn: last.turn, role: "context" };
    return [q, t, last];
  }));
}

function range(flat, turn) {
  const first = flat.findIndex(([, , place]) => place.turn === turn);
  if (first < 0) return [0, 0];
  let last = first;
  while (last < flat.length && flat[last][2].turn === turn) last += 1;
  return [first, last];
}

function indices([from, to]) {
  return Array.from({ length: to - from }, (_, at) => from + at);
}

function quantile(values, share) {
  const sorted = values.sort((x, y) => x - y);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

// Line ends stay, and are seen.
function shownPiece(text) {
  return text.replaceAll("\n", "↵\n");
}

function legend(colour, scale) {
  if (colour[0] === "none") return null;
  const cell = (kind, share) => h("i", { class: kind, "$--v": 6 + 68 * share + "%" });
  return h("span", { class: "scale", "aria-hidden": "true" },
    colour[3] ? [MIN(scale), cell("down", 1), cell("down", 0.5), cell("down", 0.1), cell("up", 0.1), cell("up", 0.5), cell("up", 1), num(scale, 2)]
      : ["0", cell("size", 0.1), cell("size", 0.4), cell("size", 0.7), cell("size", 1), num(scale, 2)]);
}

function MIN(scale) {
  return num(-scale, 2);
}

function turnCard(e, turn, index, flat, tokens) {
  const [from, to] = range(flat, index);
  const own = indices([from, to]).filter((i) => flat[i][2].role === "policy");
  const after = indices([from, to]).filter((i) => flat[i][2].role === "context");
  const possible = e.available[index];
  return h("article", { class: "turn card", tabindex: "-1", "aria-label": "Turn " + (index + 1) },
    h("header", {}, h("h2", {}, "Turn " + (index + 1)),
      h("span", { class: "meta" }, [
        turn.parse === "clean" ? null : h("span", { class: "tag " + turn.parse, title: turn.parse === "invalid" ? INVALID : NORMALISED }, turn.parse === "invalid" ? "no action found" : "action normalised"),
        e.agent?.places[index] ? h("span", { class: "tag" }, e.agent.places[index]) : null,
        turn.finish === "length" ? h("span", { class: "tag invalid", title: CUT }, "cut") : null,
        `${own.length} tokens`, turn.reward === null ? "" : ` · reward ${num(turn.reward)}`, turn.done ? " · done" : "",
      ])),
    own.length ? tokens(own) : h("pre", {}, turn.text),
    turn.action === null ? null : h("p", { class: "action" }, h("span", { class: "who" }, "sent"), h("code", {}, turn.action)),
    h("div", { class: "observation" }, h("span", { class: "who" }, e.tools.length ? "tool" : "answer"), h("pre", {}, turn.observation)),
    after.length || possible
      ? h("div", { class: "under" },
        after.length ? h("details", {}, h("summary", {}, `${after.length} tokens that were not trained on`), tokens(after)) : null,
        possible ? h("details", {}, h("summary", {}, possible.length + " possible actions"), h("ul", {}, possible.map((action) => h("li", {}, action)))) : null)
      : null);
}

function inspect(card, q, t, place, index) {
  const rows = [
    ["token", `${index}, id ${q.ids[t]}`], ["text", h("code", {}, JSON.stringify(q.pieces[t]))],
    ["from", q.mask[t] ? "the policy" : "outside, not trained on"], ["turn", place.turn < 0 ? "prompt" : place.turn + 1],
  ];
  if (q.mask[t]) {
    const stream = (name, values, places = 4) => values && rows.push([name, fixed(values[t], places)]);
    // A chat API gives texts alone.
    if (isNumber(q.sampled[t])) { rows.push(["probability", num(Math.exp(q.sampled[t]), 4)]); stream("log-prob, sampled", q.sampled); }
    else rows.push(["probability", "not known"]);
    stream("log-prob, old", q.old); stream("log-prob, reference", q.reference);
    if (q.rescored && q.old) { stream("log-prob, rescored", q.rescored); rows.push(["ratio", num(Math.exp(q.rescored[t] - q.old[t]), 4)]); }
    stream("entropy", q.entropies); stream("value", q.values);
    if (q.advantages) rows.push(["advantage", signed(q.advantages[t], 6)]);
  }
  show(card, h("h2", {}, "Token"), h("dl", { class: "pairs" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function groupCard(run, e, part) {
  const rows = e.siblings.map((row) => {
    const cells = [
      h("span", {}, a(episodeLink(run, row), String(row.sample)), row.greedy ? " greedy" : ""), outcome(row.outcome), num(row.reward), signed(row.advantage, 4), row.turns,
    ];
    if (row.part === part.join("/") && row.k === e.k) cells.attributes = { class: "own", "aria-current": "true" };
    return cells;
  });
  const compare = e.siblings.length > 1 ? a(link(["runs", run, "group", e.iteration, e.stage, e.siblings[0].part.split("/")[2], e.group]), "side by side") : null;
  return h("section", { class: "card", "aria-label": "Group" }, h("h2", {}, "Group ", compare && h("small", {}, compare)),
    table("Samples of " + e.task, [["sample", "n"], ["outcome"], ["reward", "n"], ["advantage", "n"], ["turns", "n"]], rows));
}

function direction(x) {
  return x < 0 ? "neg" : x > 0 ? "pos" : "quiet";
}

function explain(card, credit, e, flat, run) {
  if (credit.pipeline === "agentevol") {
    const lines = credit.lines ?? ["It was no candidate."];
    show(card, h("h2", {}, "Is it learnt?"), h("p", {}, lines), seal(credit.lineage_equal, "lineage.json"));
    return;
  }
  const x = credit.explanation;
  const steps = [];
  if (credit.turn_rewards) steps.push(h("p", {}, "Turn rewards ", h("b", {}, credit.turn_rewards.map((r) => num(r)).join("  "))));
  for (const term of credit.reward_terms ?? []) {
    steps.push(h("p", { class: "step" }, `Reward + (${exact(term.value)}): ${term.formula}`));
  }
  if (credit.kl) {
    const sum = credit.kl.penalties.reduce((all, v) => all + v, 0);
    steps.push(h("p", { class: "step" }, "Each token's reward takes −", h("i", {}, "β"), " · ", credit.kl.estimator, ", ", h("i", {}, "β"), " = ", exact(credit.kl.kl_coef),
      `; mean ${num(credit.kl.kl, 4)} nats, in all ${num(sum, 4)}`));
  }
  if (x) {
    const mask = credit.loss_mask;
    const number = (label) => x.numbers.find((n) => n.label === label)?.value;
    const compared = credit.members.filter((m) => m.compared);
    for (const line of x.formula) steps.push(h("p", { class: "formula" }, line));
    if (x.streams.length) {
      const own = (values) => values.map((v, t) => [t, v]).filter(([t]) => mask[t]).map(([, v], i) => [i, v]);
      const series = [...x.streams, { label: "A", value: x.advantages }];
      steps.push(lineChart({ title: "over its sampled tokens", xLabel: "sampled token", whole: true, marks: [], unit: "",
        series: series.map((s, i) => ({ name: s.label, points: own(s.value), dashed: i === series.length - 1 })) }));
    } else {
      steps.push(groupDots(credit.members, credit.sample, number("mean"), number("std")));
      if (new Set(compared.map((m) => m.score)).size === 1 && compared.length > 1) steps.push(h("p", { class: "warn" }, "All members have the same score, so the group teaches nothing."));
      steps.push(h("p", { class: "quiet" }, "The same for each of its ", mask.filter(Boolean).length, " sampled tokens."));
    }
  }
  if (credit.scrambled) steps.push(h("p", { class: "warn" }, "A control then exchanged the advantages among episodes."));
  if (credit.importance) {
    const w = credit.importance.weights;
    const cut = w.filter((v) => v >= credit.importance.threshold).length;
    steps.push(h("p", { class: "step" }, `× importance weight min(exp(old − sampled), ${credit.importance.threshold}) by ${credit.importance.level}: `,
      `${num(Math.min(...w), 4)} to ${num(Math.max(...w), 4)}, ${cut} of ${w.length} cut`));
  }
  if (credit.left_out) steps.push(h("p", { class: "warn" }, "Not trained on: ", credit.left_out, "."));
  if (credit.minibatch) {
    const m = credit.minibatch;
    steps.push(h("p", { class: "quiet" }, `Slot ${credit.slot}, minibatch ${m.minibatch + 1} of ${m.of} (slots ${m.slots[0]} to ${m.slots[1] - 1}): `,
      `${m.aggregation} over ${m.loss_tokens} loss tokens in ${m.sequences} sequences, so that each of its tokens weighs ${m.weights.map((w) => num(w)).join(", ")}. `, a(link(["runs", run, "update", e.iteration]), "The update")));
  }
  const computed = credit.batch?.compared;
  show(card, h("h2", {}, "Why ", credit.advantage === null ? "no advantage" : h("b", { class: "signed " + direction(credit.advantage) }, signed(credit.advantage, 4))),
    steps,
    credit.bits ? h("p", { class: "bits" }, h("span", {}, "bits "), h("code", {}, credit.bits)) : null,
    seal(computed === "equal" ? true : computed === "differs" ? false : null, "batch.bin"),
    (credit.batch?.differences ?? []).map((d) => h("p", { class: "warn" }, `slot ${d.slot} ${d.what}: computed ${d.computed}, recorded ${d.recorded}`)));
}

function seal(equal, file) {
  if (equal === null || equal === undefined) return h("p", { class: "quiet" }, file + " is not committed yet.");
  return equal ? h("p", { class: "seal good" }, "✓ computed anew, equal to ", file, " bit for bit")
    : h("p", { class: "seal bad" }, "✕ ", file, " is not what the plan, the episodes and their log-probs give");
}

// The samples of a task side by side, with the place where they part.
export async function groupPage(root, [run, n, stage, p, group], query) {
  const list = await ask(runPath(run, "episodes") + "?" + new URLSearchParams({ iteration: n, stage, group, limit: 64 }));
  const set = stage.startsWith("evaluate") ? (row) => row.part === [n, stage, p].join("/") : () => true;
  const rows = list.rows.filter(set);
  const all = await Promise.all(rows.map((row) => askOnce(runPath(run, "parts", ...row.part.split("/"), "episodes", row.k))));
  const said = (e, turn) => e.turns[turn] && (e.turns[turn].action ?? e.turns[turn].text);
  const most = Math.max(0, ...all.map((e) => e.turns.length));
  let parts = most;
  for (let turn = 0; turn < most; turn += 1) {
    if (new Set(all.map((e) => said(e, turn))).size > 1) { parts = turn; break; }
  }
  // What a sample is marked against: the greedy one, else what most do, if more do it than anything else.
  const greedy = all.find((e) => e.greedy);
  const usual = (turn) => {
    if (greedy) return said(greedy, turn);
    const counts = new Map();
    for (const e of all) if (e.turns[turn]) counts.set(said(e, turn), (counts.get(said(e, turn)) ?? 0) + 1);
    const [one, two] = [...counts].sort((x, y) => y[1] - x[1]);
    return one && one[1] > (two?.[1] ?? 0) ? one[0] : undefined;
  };
  const head = h("tr", {}, h("th", { scope: "col" }, "turn"), all.map((e, i) => h("th", { scope: "col" },
    a(episodeLink(run, rows[i]), "sample " + e.sample), e.greedy ? " greedy" : "", h("br"), outcome(e.outcome), h("br"),
    h("span", { class: "meta" }, `reward ${num(e.reward)}`, e.advantage === null ? "" : `, advantage ${signed(e.advantage, 3)}`))));
  const body = Array.from({ length: most }, (_, turn) => h("tr", { class: turn === parts ? "parts" : null },
    h("th", { scope: "row" }, turn + 1, turn === parts ? h("span", { class: "tag" }, "differ from here") : null),
    all.map((e) => {
      const own = e.turns[turn];
      const kind = [own?.parse === "invalid" ? "invalid" : "", own && turn >= parts && ![said(e, turn), undefined].includes(usual(turn)) ? "differs" : ""].join(" ").trim();
      return h("td", { class: kind || null }, own ? [h("code", {}, said(e, turn)), h("pre", {}, own.observation)] : "");
    })));
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, all[0]?.task ?? "Group", h("small", {}, ` group ${group}, iteration ${n}`))),
    h("details", { class: "card prompt" }, h("summary", {}, "Prompt"), h("pre", {}, all[0]?.prompt ?? "")),
    h("p", { class: "quiet" }, parts === 0 && most > 0 ? "They differ from the first turn on." : parts < most ? `All do the same in the first ${parts} turns, and differ from turn ${parts + 1} on.` : "All did the same."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Samples side by side" }, h("table", { class: "side-by-side" }, h("caption", { class: "quiet" }, "Action and answer of each sample, by turn; ", h("span", { class: "differs" }, "marked"), greedy ? ": not what the greedy sample does" : ": not what most of them do; no mark where none is most"), h("thead", {}, head), h("tbody", {}, body))));
}
