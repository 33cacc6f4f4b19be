// Export: pictures, numbers, a page of its own, and the request as curl or Python.
import { html, useState } from "vendor/preact.js";
import { ablationCsv, ablationOf } from "heed/save/ablation_table.js";
import { toDocument } from "heed/save/document.js";
import { gridCsv, gridJson } from "heed/save/sweep_save.js";
import { lensCsv, lensJson } from "heed/save/lens_save.js";
import { quoted } from "heed/save/quoted.js";
import { toPng } from "heed/save/svg.js";
import { toCurl, toPython } from "heed/save/commands.js";
import { drawingOf } from "heed/page/drawing_of.js";
import { Popup } from "heed/views/controls.js";
import { useShown } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/display.js").Shown} Shown */

/** @param {string} name @param {Blob} content */
function download(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const OF_SERVER = ["ablate", "neurons", "steps"]; // views that a saved page cannot have: each asks the server

/** A number as a cell; empty if it is not finite. @param {number} value */
const finite = (value) => (Number.isFinite(value) ? value : "");

/** The shown matrix as CSV (RFC 4180), words of the keys first. @param {ViewProps["attention"]} attention @param {Shown} shown */
export function toCsv(attention, { n, rows, columns, values }) {
  const head = ["", ...columns.map((place) => quoted(attention.columns[place].text))].join(",");
  const lines = rows.map((place, i) =>
    [quoted(attention.rows[place].text), ...Array.from(values.subarray(i * n, (i + 1) * n), finite)].join(","),
  );
  return [head, ...lines, ""].join("\r\n");
}

/** A text or a grid for a saved page, stopped if it is still running. @template {{status: string}} T @param {T | null} text @returns {T | null} */
const ended = (text) => text && { ...text, status: text.status === "running" ? "stopped" : text.status };

/** @param {ViewProps & {title: string, about: Record<string, string>, request?: import("heed/save/commands.js").Request | null,
 *   picture?: import("heed/views/picture_view.js").Seen | null, second?: import("heed/views/compare_view.js").Side | null,
 *   generation?: {text: import("heed/page/generation.js").Text | null, actions: import("heed/page/generation.js").Actions | null} | null, sweep?: import("heed/page/sweep.js").SweepState | null,
 *   lens?: import("heed/page/lens.js").LensState | null, run?: import("heed/views/hooks.js").Run | null}} props  `request` as sent */
export function TakeAlong({
  attention,
  settings,
  title,
  about,
  request = null,
  picture = null,
  second = null,
  generation = null,
  sweep = null,
  lens: lensState = null,
  run = null,
}) {
  const generated = generation?.text ?? null;
  const { shown } = useShown(attention, settings);
  const [message, setMessage] = useState("");
  if (!shown) return null;
  const where =
    settings.combine === "none" ? `${settings.layer}.${settings.head}` : `${settings.layer}.${settings.combine}`;
  const grid = settings.view === "patch" ? (sweep?.grid ?? null) : null;
  const lens = settings.view === "lens" ? (lensState?.lens ?? null) : null;
  const isMatrix = settings.view !== "patch" && settings.view !== "lens";
  const name = `${title.replace(/[^\w.-]+/g, "-")}-${settings.view}${isMatrix ? `-${where}` : ""}`;
  const text = (/** @type {string} */ suffix, /** @type {string} */ type, /** @type {string} */ content) =>
    download(`${name}.${suffix}`, new Blob([content], { type }));
  const copy = async (/** @type {string} */ what, /** @type {string} */ content, without = "") => {
    if (!navigator.clipboard) throw new Error("this browser can copy only on https and localhost");
    await navigator.clipboard.writeText(content);
    setMessage(`${what} copied${without && `; it does not contain ${without}`}`);
  };
  const drawing = () =>
    drawingOf({ attention, settings, shown, title, about, picture, second, generated, grid, lens, run });
  const isAblated = settings.view === "ablate" && run !== null;
  const csv = async () => {
    if (grid) return gridCsv(grid);
    if (lens) return lensCsv(lens);
    return isAblated ? ablationCsv(await ablationOf(run)) : toCsv(attention, shown);
  };
  const json = async () => {
    if (grid) return gridJson(grid, sweep?.cell ?? null);
    if (lens) return lensJson(lens);
    return matrixJson();
  };
  const matrixJson = async () =>
    JSON.stringify({
      ...(request && { model: request.model }),
      output: settings.kind,
      ...(isAblated ? { ablated: settings.ablated, ...(await ablationOf(run)) } : matrix()),
    });
  const matrix = () => ({
    layer: settings.layer,
    head: settings.head,
    combine: settings.combine,
    queries: shown.rows.map((place) => attention.rows[place].text),
    keys: shown.columns.map((place) => attention.columns[place].text),
    weights: shown.rows.map((_, i) =>
      Array.from(shown.values.subarray(i * shown.n, (i + 1) * shown.n), (value) =>
        Number.isFinite(value) ? value : null,
      ),
    ),
  });
  /** @type {[string, () => unknown][]} */
  const actions = [
    ["SVG", async () => text("svg", "image/svg+xml", await drawing())],
    ["PNG", async () => download(`${name}.png`, await toPng(await drawing()))],
    ["CSV", async () => text("csv", "text/csv", await csv())],
    ["JSON", async () => text("json", "application/json", await json())],
  ];
  if (!OF_SERVER.includes(settings.view))
    actions.push([
      "HTML page",
      async () => {
        const theirs = settings.view === "compare" && second && !second.isSame ? second.attention : null;
        const other = theirs && second && { attention: theirs, settings: second.settings };
        const whole = generated && ((await generation?.actions?.whole()) ?? generated);
        text(
          "html",
          "text/html",
          await toDocument(
            title,
            attention,
            settings,
            about,
            picture,
            ended(whole),
            {
              ...(sweep?.grid && { sweep: { ...sweep, grid: ended(sweep.grid), actions: null } }),
              ...(lens && { lens }),
            },
            other,
          ),
        );
        if (request)
          setMessage(
            `saved with the weights${sweep?.grid ? ", Patch" : ""}${lens ? ", Lens" : ""}; the other views need the server`,
          );
      },
    ]);
  if (request) {
    actions.push(
      [
        "copy link",
        () => copy("link", location.href, picture || !request.texts ? "files and numbers of your own" : ""),
      ],
      ["copy as curl", () => copy("curl", toCurl(request))],
      ["copy as Python", () => copy("Python", toPython(request))],
    );
    const saveRequest = (/** @type {import("heed/save/commands.js").Request} */ { body }) =>
      download("request.json", new Blob([JSON.stringify(body())], { type: "application/json" }));
    if (!request.texts) actions.push(["request.json", () => saveRequest(request)]);
    const other = settings.view === "compare" ? second?.request : null;
    if (other) {
      actions.push(
        ["copy second as curl", () => copy("second as curl", toCurl(other))],
        ["copy second as Python", () => copy("second as Python", toPython(other))],
      );
      if (!other.texts) actions.push(["second request.json", () => saveRequest(other)]);
    }
  }
  const act = (/** @type {() => unknown} */ action) => async () => {
    setMessage("");
    try {
      await action();
    } catch (error) {
      setMessage(/** @type {Error} */ (error).message);
    }
  };
  return html`<${Popup} name="take" title="Export">${actions.map(([label, action]) => html`<button onClick=${act(action)}>${label}</button>`)}
      <span role="status">${message}</span><//>`;
}
