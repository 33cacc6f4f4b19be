// A page of its own from the open one: its modules as data: URLs, its style, and the weights inside.
import { runPart } from "heed/data/state.js";
import { fromAttention, fromPicture } from "heed/save/saved.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */

const POLICY =
  "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src blob: data:; font-src data:";
const FONT = "vendor/fonts/Inter.woff2"; // as the style has it
const FORBIDDEN = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu; // in XML 1.0
const WITHOUT = ["vendor/katex.js"]; // only the server's page has formulas

/**
 * The HTML of the page, which opens with `settings`. More than a million weights are rounded to 256 levels.
 * @param {string} title @param {Attention} attention @param {Settings} settings
 * @param {Record<string, string>} about  origin of the weights
 * @param {import("heed/views/picture_view.js").Seen | null} picture  that the model was run on
 * @param {import("heed/page/generation.js").Text | null} [generated]  whose tokens are the queries
 * @param {Partial<Pick<import("heed/save/saved.js").Saved, "sweep" | "lens">>} [views]  other measurements
 * @param {import("heed/views/comparison.js").One | null} [second]  another answer that it is compared with
 */
export async function toDocument(
  title,
  attention,
  settings,
  about,
  picture,
  generated = null,
  views = {},
  second = null,
) {
  const { text: _text, pair: _pair, target: _target, parameters: _parameters, other, ...looks } = settings;
  const run = runPart(settings);
  const ofHead = Object.entries(other ?? {}).filter(([name]) => !(name in run));
  const data = JSON.stringify({
    title,
    kind: settings.kind,
    ...(await fromAttention(attention)),
    settings: { ...looks, ...(second && run), other: ofHead.length ? Object.fromEntries(ofHead) : null },
    about,
    picture: picture && fromPicture(picture),
    generated,
    ...views,
    ...(second && { second: { ...(await fromAttention(second.attention)), settings: runPart(second.settings) } }),
  });
  const [imports, style] = await Promise.all([modules(), sheet()]);
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<style>${style}</style>
<script type="importmap">${JSON.stringify({ imports })}</script>
<script type="module">import "heed/main.js";</script>
<script type="application/json" id="data">${data.replaceAll("<", "\\u003c")}</script>
<body></body>
</html>
`;
}

/** The modules by name, each as a data: URL. @returns {Promise<Record<string, string>>} */
async function modules() {
  const map = JSON.parse(document.querySelector("script[type=importmap]")?.textContent ?? "{}");
  const named = Object.entries(/** @type {Record<string, string>} */ (map.imports)).filter(
    ([name]) => !WITHOUT.includes(name),
  );
  return Object.fromEntries(
    await Promise.all(
      named.map(async ([name, url]) => {
        if (url.startsWith("data:")) return [name, url];
        const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
        return [name, `data:text/javascript;base64,${base64(bytes)}`];
      }),
    ),
  );
}

/** @param {Uint8Array} bytes */
const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

/** The style, with the font as a data: URL. */
async function sheet() {
  const link = document.querySelector("link[rel=stylesheet]");
  if (!(link instanceof HTMLLinkElement)) return document.querySelector("style")?.textContent ?? "";
  const [style, font] = await Promise.all([
    fetch(link.href).then((response) => response.text()),
    fetch(new URL(FONT, link.href)).then((response) => response.arrayBuffer()),
  ]);
  return style.replace(FONT, `data:font/woff2;base64,${base64(new Uint8Array(font))}`);
}

/** Text for HTML and XML, without what XML forbids. @param {string} text */
export const escape = (text) =>
  text
    .toWellFormed()
    .replace(FORBIDDEN, "\ufffd")
    .replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
