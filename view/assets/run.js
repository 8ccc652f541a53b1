// All runs; a run with its curves; an update.

import { h, a, show, ago, bytes, choice, facts, fixed, grouped, isNumber, link, num, percent, seconds, signed, table } from "./dom.js";
import { ask, askOnce, bundledRun, runPath } from "./data.js";
import { histogram, lineChart, sharedCursor, sparkline } from "./charts.js";

function state(status) {
  const count = status.warnings?.length ?? 0;
  const warned = count ? h("span", { class: "state warn", title: status.warnings.map((w) => w.line).join("\n") }, `▲ ${status.finished ? "finished, " : ""}${count} ${count === 1 ? "warning" : "warnings"}`) : null;
  if (status.finished && warned) return warned;
  if (status.finished) return h("span", { class: "state good" }, "● finished");
  if (status.on_hold) return h("span", { class: "state warn" }, "◌ on hold");
  if (status.stopped || status.paused) return h("span", { class: "state bad" }, "■ stopped");
  if (warned) return warned;
  const running = status.in_flight.filter((part) => part.state === "running").length;
  return running ? h("span", { class: "state run" }, `▶ ${running} running`) : h("span", { class: "state warn" }, "◌ waiting");
}

function progress(status) {
  return h("span", { class: "progress" }, h("progress", { max: status.parts, value: status.committed, "aria-label": "parts committed" }), ` ${status.latest ?? 0}/${status.iterations}`);
}

export async function runsPage(root, _, query, go) {
  const answer = await ask("runs");
  const picked = new Set((query.pick ?? "").split(",").filter(Boolean));
  const compare = h("button", { type: "button", disabled: picked.size !== 2, onclick: () => { const [x, y] = picked; go(["compare"], { a: x, b: y }); } }, "Compare the two");
  const newest = [...answer.runs].sort((one, other) => (other.last_unix_s ?? 0) - (one.last_unix_s ?? 0));
  const rows = newest.map((run) => {
    if (run.error) return ["", run.run, h("span", { class: "warn" }, run.error), "", "", "", "", "", ""];
    const label = "success of training by iteration; dots: evaluations";
    return [
      h("input", { type: "checkbox", "aria-label": "compare " + run.run, checked: picked.has(run.run), onchange: (e) => {
        if (e.target.checked) picked.add(run.run); else picked.delete(run.run);
        compare.disabled = picked.size !== 2;
      } }),
      a(link(["runs", run.run]), run.run), state(run.status), progress(run.status),
      sparkline(run.training, run.evaluations, label, run.iterations), percent(run.evaluations.at(-1)?.[1] ?? run.training.at(-1)?.[1]),
      run.pipeline === "rl" ? run.estimator : run.pipeline,
      isNumber(run.status.iteration_s) ? seconds(run.status.iteration_s) : "–", seconds(run.worker_s), ago(run.last_unix_s),
    ];
  });
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Runs"), h("span", { class: "quiet" }, answer.store), compare),
    rows.length ? table("Every run of this store", [["two"], ["run"], ["state"], ["iteration"], ["success"], ["latest", "n"], ["algorithm"], ["an iteration", "n"], ["worker time", "n"], ["last work", "n"]], rows, { class: "runs" })
      : h("p", {}, "This store holds no run yet."));
}

// title, unit, series [name, key], range, note
const CURVES = [
  ["Success in training", "share of episodes", [["", "success"]], [0, 1]],
  ["Reward", "mean", [["", "reward"]]],
  ["Rounds", "", [["played, mean", "rounds_mean"], ["horizon", "horizon"]]],
  ["Entropy", "nats, mean of the sampled tokens", [["", "entropy"]]],
  ["Step from the old policy", "KL, nats", [["", "update.ppo_kl"]]],
  ["KL to the reference", "nats", [["", "ref_kl"]]],
  ["Clipped tokens", "share", [["", "update.clip_fraction"]]],
  ["Gradient norm", "before clipping", [["", "update.grad_norm"]]],
  ["Tokens per episode", "mean", [["sampled", "response_length_mean"], ["prompt", "prompt_length_mean"]]],
  ["Groups", "count", [["mixed: these teach", "groups_mixed"], ["all failed", "groups_all_zero"], ["all solved", "groups_all_one"]]],
  ["Environment faults", "share of episodes", [["", "env_fault_rate"]]],
  ["Critic", "explained variance", [["", "explained_variance"]]],
  ["Kept trajectories", "count", [["", "kept"]]],
  ["Supervised loss", "nats per token", [["sft", "sft.loss"], ["dpo", "dpo.loss"]]],
  ["Sampling speed", "tokens/s", [["", "tokens_per_s"]]],
];
// Limits of the guard by the figure that they hold for.
const LIMITS = { entropy: ["entropy_min", "entropy_max"], "update.grad_norm": ["grad_norm_max"] };
const AXES = [["iteration", "iteration"], ["sampled_tokens", "sampled tokens"], ["time_s", "time since start"], ["worker_s", "worker time"], ["cost", "cost of useful time"]];

// A price in the URL is for workers that named none; the server does the sums.
export function priceOf(query) {
  return query.price && !bundledRun ? "?" + new URLSearchParams({ price: query.price }) : "";
}

export function priceField(unpriced, query, set) {
  return (unpriced > 0 || query.price) && !bundledRun ? h("label", { class: "choice" }, h("span", {}, "Price of a worker-hour, where the worker named none"),
    h("input", { type: "number", min: "0", step: "any", value: query.price ?? "", onchange: (e) => set(e.target.value) })) : null;
}

export async function runPage(root, [run], query, go) {
  const [answer, series] = await Promise.all([ask(runPath(run)), ask(runPath(run, "series"))]);
  const axis = AXES.find(([key]) => key === query.x) ?? AXES[0];
  // Money takes a look at every attempt, so only who asks for it waits for that.
  const ledger = axis[0] === "cost" ? await ask(runPath(run, "ledger") + priceOf(query)) : null;
  const free = ledger !== null && !isNumber(ledger.total.cost);
  if (ledger && !free) {
    let spent = 0;
    const costs = new Map(ledger.iterations.map((one) => [one.iteration, spent += one.useful_cost ?? 0]));
    for (const point of series.iterations) point.cost = costs.get(point.iteration);
  }
  const xOf = (n) => series.iterations.find((point) => point.iteration === n)?.[axis[0]];
  const xFormat = axis[0].endsWith("_s") ? seconds : axis[0] === "iteration" || axis[0] === "cost" ? undefined : (x) => x >= 1e6 ? num(x / 1e6) + "M" : x >= 1e3 ? num(x / 1e3) + "k" : num(x);
  const cursor = sharedCursor();
  const points = series.iterations.filter((point) => point.iteration > 0 || series.planned === 0);
  const xs = series.iterations.map((point) => point[axis[0]]).filter(isNumber);
  const xRange = xs.length > 1 ? [Math.min(...xs), Math.max(...xs)] : undefined;
  const marks = isNumber(answer.forked_at) ? [[xOf(answer.forked_at) ?? answer.forked_at, "forked here"]] : [];
  const tripped = Number(/since iteration (\d+)/.exec(answer.status.paused ?? "")?.[1]);
  if (isNumber(xOf(tripped))) marks.push([xOf(tripped), "the guard's limit is passed"]);
  const guard = answer.config?.guard ?? {};
  const limits = (key) => (LIMITS[key] ?? []).map((name) => [guard[name], "guard." + name]).filter(([limit]) => isNumber(limit));
  const common = { xLabel: axis[1], xFormat, whole: axis[0] === "iteration", cursor, marks, xRange };
  const sets = [...new Set(series.evaluations.flatMap((e) => e.sets.map((one) => one?.set)).filter(Boolean))];
  const charts = [];
  if (sets.length) {
    charts.push(lineChart({ ...common, title: "Success on held-out tasks", unit: "95 % interval", yRange: [0, 1],
      series: sets.slice(0, 6).map((name, at) => ({ name, colour: at, shape: at, dots: true, points: series.evaluations.flatMap((e) => {
        const one = e.sets.find((found) => found?.set === name);
        return one && isNumber(xOf(e.iteration)) ? [[xOf(e.iteration) + (axis[0] === "iteration" ? (at - (sets.length - 1) / 2) * 0.02 * (xs.length) : 0), one.success, one.low, one.high]] : [];
      }) })) }));
  }
  for (const [title, unit, all, yRange] of CURVES) {
    const lines = all.map(([name, key]) => ({ name, points: points.filter((p) => isNumber(p[key])).map((p) => {
      const within = key === "success" ? p.success_within : null;
      return isNumber(within) ? [p[axis[0]], p[key], p[key] - within, p[key] + within] : [p[axis[0]], p[key]];
    }) })).filter((one) => one.points.length && one.points.some((p) => p[1] !== 0));
    if (lines.length) charts.push(lineChart({ ...common, title, unit, series: lines, yRange, limits: limits(all[0][1]) }));
  }
  const status = answer.status;
  const parent = answer.config?.run?.fork?.run;
  // The parent may be in no store that is open here.
  const changes = parent && !bundledRun ? await ask(runPath(parent)).then((p) => differences(p.config, answer.config), () => null) : null;
  const columns = [["iteration", "n"], ["success", "n"], ["reward", "n"], ["horizon", "n"], ["entropy", "n"], ["KL", "n"], ["clipped", "n"], ["grad norm", "n"], ["mixed groups", "n"], ["tokens", "n"], ["time", "n"], ["see", "w"]];
  const rows = points.map((p) => [
    String(p.iteration), fixed(p.success, 3) + (isNumber(p.success_within) ? " ±" + fixed(p.success_within, 2) : ""), fixed(p.reward, 3), num(p.horizon), fixed(p.entropy, 3),
    num(p["update.ppo_kl"]), percent(p["update.clip_fraction"], 2), fixed(p["update.grad_norm"], 3), num(p.groups_mixed), grouped(p.loss_tokens), seconds(p.wall_s),
    [a(link(["runs", run, "episodes"], { iteration: p.iteration, stage: "rollout" }), "episodes"), " ", p["update.grad_norm"] === undefined ? null : a(link(["runs", run, "update", p.iteration]), "update")],
  ]);
  const evaluated = series.evaluations.map((e) => [e.label, ...sets.map((name) => {
    const one = e.sets.find((found) => found?.set === name);
    return one ? [percent(one.success, 1), h("br"), h("span", { class: "meta" }, `[${fixed(one.low, 2)}, ${fixed(one.high, 2)}]`, isNumber(one.greedy) ? ` greedy ${percent(one.greedy, 1)}` : "")] : "–";
  }), percent(e.overall?.success, 1)]);
  const failures = status.failures.map((f) => h("li", {}, `${f.part} attempt ${f.attempt}: ${f.message}`));
  show(root,
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, run), state(status), progress(status)),
    facts([
      ["algorithm", answer.pipeline === "rl" ? answer.estimator : answer.pipeline], ["model", answer.model], ["seed", answer.seed],
      ["parts", `${status.committed} of ${status.parts}`], ["an iteration", isNumber(status.iteration_s) ? seconds(status.iteration_s) : null],
      ["left", isNumber(status.left_s) && !status.finished ? seconds(status.left_s) : null], ["worker time", seconds(answer.worker_s)], ["workers", answer.workers],
      ["last work", ago(answer.last_unix_s, answer.now_unix_s)], ["identity", h("code", { title: answer.identity }, answer.identity.slice(0, 12))],
      ["plan revision", answer.revision], ["forked at", answer.forked_at],
    ]),
    status.finished ? null : h("p", { class: "waiting" }, "Waiting ", status.waiting, "."),
    status.paused ? h("p", { class: "card bad" }, status.paused) : null,
    failures.length ? h("ul", { class: "warn" }, failures) : null,
    status.warnings?.length ? h("ul", { class: "warn", "aria-label": "Warnings" }, status.warnings.map((w) => h("li", {}, w.line))) : null,
    h("div", { class: "toolbar" }, choice("Over", AXES, axis[0], (x) => go(["runs", run], { ...query, x: x === "iteration" ? "" : x })),
      ledger ? priceField(ledger.total.unpriced_s, query, (price) => go(["runs", run], { ...query, price })) : null,
      ledger ? h("span", { class: "quiet" }, "Lost and idle time is not in it; ", a(link(["runs", run, "fleet"], { price: query.price }), "the ledger"), " has both.",
        ledger.total.unpriced_s > 0 && !free ? ` ${seconds(ledger.total.unpriced_s)} are of workers without a price, and in no cost.` : "") : null),
    free ? h("p", { class: "quiet" }, "No worker said what it costs (agentgym-worker --price): give a price.")
      : charts.length ? h("div", { class: "charts" }, charts) : h("p", { class: "quiet" }, "Nothing is measured yet."),
    evaluated.length ? table("Evaluations", [["policy"], ...sets.map((name) => [name, "n"]), ["all", "n"]], evaluated) : null,
    rows.length ? table("Iterations", columns, rows) : null,
    changes ? configDiff("Config that differs from its parent's", parent, run, changes) : null,
    h("details", { class: "card" }, h("summary", {}, "Config"), h("pre", { class: "config" }, JSON.stringify(answer.config, null, 1))));
}

// Keys whose values differ, of two configs: [key, one, other].
export function differences(one, other, prefix = "") {
  const object = (v) => v !== null && typeof v === "object" && !Array.isArray(v);
  const keys = [...new Set([...Object.keys(one ?? {}), ...Object.keys(other ?? {})])];
  return keys.flatMap((key) => {
    const [x, y] = [one?.[key], other?.[key]];
    if (object(x) && object(y)) return differences(x, y, prefix + key + ".");
    return JSON.stringify(x) === JSON.stringify(y) ? [] : [[prefix + key, x, y]];
  });
}

export function configDiff(caption, one, other, all) {
  const text = (v) => v === undefined ? "–" : JSON.stringify(v);
  return all.length === 0 ? h("p", { class: "quiet" }, "Both configs are the same.")
    : table(caption, [["key"], [one], [other]], all.map(([key, x, y]) => [h("code", {}, key), h("code", {}, text(x)), h("code", {}, text(y))]));
}

export async function partPage(root, [run, n, stage, p]) {
  const answer = await askOnce(runPath(run, "parts", n, stage, p));
  const m = answer.manifest;
  const pairs = (all) => Object.entries(all).filter(([, v]) => typeof v !== "object").map(([name, v]) => [name, isNumber(v) ? num(v, 6) : String(v)]);
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, answer.part, h("small", {}, ` attempt ${m.attempt}, ${seconds(answer.wall_s)}`))),
    facts([["worker", m.work?.worker], ["numeric class", m.numeric_class], ["program", m.code_version], ["plan revision", m.plan_revision]]),
    m.outputs.some((o) => o.name === "episodes.bin") ? h("p", {}, a(link(["runs", run, "episodes"], { iteration: n, stage }), "Its episodes")) : null,
    m.inputs.length ? table("Read", [["name"], ["commit"]], m.inputs.map((i) => [i.name, a(link(["runs", run, "parts", i.iteration, i.stage, i.part]), `${i.iteration}/${i.stage}/${i.part}`)])) : null,
    table("Written", [["name"], ["size", "n"], ["digest"]], m.outputs.map((o) => [o.name, bytes(o.size), h("code", {}, String(o.digest).slice(0, 16))])),
    pairs(answer.metrics).length ? table("Metrics", [["name"], ["value", "n"]], pairs(answer.metrics)) : null,
    pairs(answer.stats).length ? table("Measured by its worker", [["name"], ["value", "n"]], pairs(answer.stats)) : null);
}

// Where a token of a batch is looked at.
function tokenLink(run, n, t) {
  const words = `group ${t.group} sample ${t.sample}, ` + (isNumber(t.turn) ? `turn ${t.turn + 1}, ` : "") + `token ${t.index}`;
  return a(t.part ? link(["runs", run, "episodes", ...t.part.split("/"), t.k], { token: t.index, colour: "advantage" })
    : link(["runs", run, "episodes"], { iteration: n, stage: "rollout", group: t.group }), words);
}

function tokenTable(caption, columns, rows) {
  return table(caption, [...columns, ["episode", "w"]], rows);
}

export async function updatesPage(root, [run]) {
  const series = await ask(runPath(run, "series"));
  const made = series.iterations.filter((p) => isNumber(p["update.grad_norm"])).reverse();
  show(root, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Updates"), h("span", { class: "quiet" }, "An update's page has its steps and the tokens that pull most.")),
    made.length === 0 ? h("p", {}, "No update is committed yet.")
      : table("Updates, newest first", [["iteration"], ["policy loss", "n"], ["gradient norm", "n"], ["clipped", "n"], ["KL", "n"], ["learning rate", "n"]],
        made.map((p) => [a(link(["runs", run, "update", p.iteration]), String(p.iteration)), num(p["update.pg_loss"]), fixed(p["update.grad_norm"], 4), percent(p["update.clip_fraction"], 2), num(p["update.ppo_kl"]), num(p["update.lr"])])));
}

export async function updatePage(root, [run, n]) {
  const answer = await ask(runPath(run, "update", n));
  const steps = answer.minibatches ?? [];
  const point = (of) => steps.map((step, at) => [at + 1, of(step)]).filter((p) => isNumber(p[1]));
  const common = { xLabel: "optimizer step", whole: true, cursor: sharedCursor() };
  const settings = answer.settings ?? {};
  const piece = (t) => h("code", {}, JSON.stringify(t.piece ?? t.id));
  const ratios = h("section", { "aria-label": "Ratios" });
  const score = h("button", { type: "button", onclick: async () => {
    score.disabled = true;
    show(score, "Scoring …");
    try {
      const found = await askOnce(runPath(run, "update", n, "ratios"));
      show(ratios, h("h2", {}, "What the update did to its tokens"), ratioView(found.histogram, found),
        tokenTable("Tokens whose probability changed most", [["ratio", "n"], ["token"], ["advantage", "n"]],
          found.tokens.map((t) => [num(t.ratio, 4), piece(t), signed(t.advantage, 3), tokenLink(run, n, t)])));
    } catch (error) { show(ratios, h("p", { class: "warn card" }, error.message)); }
  } }, "Score the batch with the policy that this update made");
  show(ratios, bundledRun ? null : h("p", {}, score));
  show(root,
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Update", h("small", {}, ` of iteration ${n}`)),
      h("nav", { class: "steps", "aria-label": "Updates" }, Number(n) > 1 ? a(link(["runs", run, "update", Number(n) - 1]), "← previous") : null, Number(n) < answer.newest ? a(link(["runs", run, "update", Number(n) + 1]), "next →") : null)),
    facts([["learning rate", num(settings.lr)], ["epochs", settings.ppo_epochs], ["clip", settings.loss ? `${settings.loss.clip.low} / ${settings.loss.clip.high}` : null],
      ["aggregation", settings.loss?.aggregation], ["entropy bonus", settings.loss ? num(settings.loss.entropy_coeff) : null], ["gradient clip", num(settings.grad_clip)]]),
    steps.length ? h("div", { class: "charts" },
      lineChart({ ...common, title: "Loss", unit: "policy", series: [{ dots: true, points: point((x) => x.metrics.policy_loss) }] }),
      lineChart({ ...common, title: "Gradient norm", unit: "before clipping", series: [{ dots: true, points: point((x) => x.grad_norm) }],
        limits: isNumber(settings.grad_clip) ? [[settings.grad_clip, "clipped above"]] : [] }),
      lineChart({ ...common, title: "Largest ratio", unit: "new / old probability", series: [{ dots: true, points: point((x) => x.metrics.ratio_max) }] }),
      lineChart({ ...common, title: "Clipped tokens", unit: "share", series: [{ dots: true, points: point((x) => x.metrics.clip_fraction) }] }),
      lineChart({ ...common, title: "Step from the old policy", unit: "KL, nats", series: [{ dots: true, points: point((x) => x.metrics.approx_kl) }] }),
      lineChart({ ...common, title: "Entropy", unit: "nats, weighted as the loss is; 0 where nothing pulls", series: [{ dots: true, points: point((x) => x.metrics.entropy) }] })) : h("p", { class: "quiet" }, "The update is not committed yet."),
    ratios,
    answer.sampler ? h("section", { "aria-label": "Sampler" }, h("h2", {}, "Sampler and trainer"), h("p", { class: "quiet" }, "Probability of each token as scored before the update, over the one that it was sampled with."), ratioView(answer.sampler, {})) : null,
    table("Minibatches", [["step", "n"], ["epoch", "n"], ["slots", "w"], ["loss tokens", "n"], ["loss", "n"], ["gradient norm", "n"], ["scaled by", "n"], ["clipped", "n"], ["KL", "n"], ["note"]],
      steps.map((x, at) => [String(at + 1), x.epoch + 1, x.slots.length ? `${x.slots[0]}–${x.slots.at(-1)} (${x.slots.length})` : "–", grouped(x.denominator.loss_tokens), num(x.metrics.policy_loss), fixed(x.grad_norm, 4), fixed(x.clip_scale, 3), percent(x.metrics.clip_fraction, 2), num(x.metrics.approx_kl), x.non_finite ? "not finite, skipped" : x.skipped ? "skipped" : ""])),
    tokenTable("Tokens that pull most: |∂loss/∂log p| · (1 − p), at the first step", [["pull", "n"], ["token"], ["advantage", "n"], ["weight", "n"], ["∂loss/∂log p", "n"], ["p", "n"]],
      answer.tokens.map((t) => [num(t.pull), piece(t), signed(t.advantage, 3), num(t.weight), num(t.slope), num(t.p), tokenLink(run, n, t)])),
    h("p", { class: "quiet" }, "The size of the loss's derivative with respect to the logit of what was sampled, where the policy is still the old one. ∂loss/∂log p is −advantage · weight",
      settings.loss?.kl ? ", and the KL term's beside it" : "", `. The weight is what ${settings.loss?.aggregation ?? "loss_agg_mode"} gives a token of its sequence in its minibatch; importance weights are in the advantage already; tokens that were not sampled have none.`));
}

// Ratios as bars, and in words.
function ratioView(found, clip) {
  return h("div", {},
    facts([["tokens", grouped(found.tokens)], ["more likely", percent(found.risen, 1)], ["less likely", percent(found.fallen, 1)],
      ["largest change", found.largest === 0 ? "none" : "× " + num(Math.exp(found.largest), 4)], ["KL", num(found.kl) + " nats per token"]]),
    histogram({ title: "Ratio of probabilities", unit: "tokens by new / old", counts: found.counts, reach: found.reach,
      marks: [[isNumber(clip.clip_low) ? 1 - clip.clip_low : null, "clip"], [isNumber(clip.clip_high) ? 1 + clip.clip_high : null, "clip"]].filter(([r]) => r > 0) }));
}
