// Takes the README's pictures from a run: `node pictures.mjs STORE RUN FOLDER`.

import { join } from "node:path";
import { browser, open, view, visit } from "./kit.mjs";

const [store, run, to] = process.argv.slice(2);
const viewer = await view(store);
const chrome = await browser();
const page = await open(chrome, viewer, { viewport: { width: 1160, height: 720 }, colorScheme: "light" });
const ask = async (question) => (await fetch(`${viewer.origin}/api/v1/${question}`, { headers: { authorization: "Bearer " + viewer.token } })).json();

await visit(page, viewer, "/runs/" + run);
await page.waitForTimeout(300);
await page.screenshot({ path: join(to, "viewer-run.png") });

// Of the last iteration with such episodes: one that solved what most of its group did not, in few turns, and
// with the least likely token.
const answer = await ask(`runs/${run}/episodes?stage=rollout&sort=-iteration&advantage_min=0.8&turns_min=3&turns_max=7&limit=200`);
if (answer.rows.length === 0) throw new Error(`no episode of ${run} fits the picture; take a finished quickstart`);
const [row] = answer.rows.filter((one) => one.iteration === answer.rows[0].iteration).sort((x, y) => x.surprise - y.surprise);
await visit(page, viewer, `/runs/${run}/episodes/${row.part}/${row.k}`);
await page.locator(".seal").waitFor();
await page.locator(".start .scene").waitFor();
// The prompt would fill the picture; and a worker's name is its machine's.
await page.locator(".prompt summary").click();
await page.locator(".start summary").click();
await page.locator(".facts > div", { hasText: /^worker/ }).evaluate((fact) => fact.remove());
await page.evaluate(() => document.activeElement.blur());
await page.waitForTimeout(300);
await page.screenshot({ path: join(to, "viewer-episode.png") });
await chrome.close();
viewer.stop();
