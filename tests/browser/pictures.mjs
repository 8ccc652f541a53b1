// Takes the README's pictures from a run: `node pictures.mjs STORE RUN FOLDER`.

import { join } from "node:path";
import { browser, open, view, visit } from "./kit.mjs";

const [store, run, to] = process.argv.slice(2);
const viewer = await view(store);
const chrome = await browser();
const page = await open(chrome, viewer, { viewport: { width: 1240, height: 800 }, colorScheme: "light" });
const ask = async (question) => (await fetch(`${viewer.origin}/api/v1/${question}`, { headers: { authorization: "Bearer " + viewer.token } })).json();

await visit(page, viewer, "/runs/" + run);
await page.waitForTimeout(300);
await page.screenshot({ path: join(to, "viewer-run.png") });

// The most negative advantage of the last iteration among episodes that took some turns.
const answer = await ask(`runs/${run}/episodes?stage=rollout&sort=-iteration&advantage_max=-0.5&turns_min=3&turns_max=9&limit=200`);
const [row] = answer.rows.filter((one) => one.iteration === answer.rows[0].iteration).sort((x, y) => x.surprise - y.surprise);
await visit(page, viewer, `/runs/${run}/episodes/${row.part}/${row.k}`);
await page.locator(".seal").waitFor();
await page.locator(".start .scene").waitFor();
// The prompt would fill the picture.
await page.locator(".prompt summary").click();
await page.waitForTimeout(300);
await page.screenshot({ path: join(to, "viewer-episode.png") });
await chrome.close();
viewer.stop();
