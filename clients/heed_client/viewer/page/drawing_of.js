// The drawing that is saved of each view.
import { openingWord, patchesIn } from "heed/data/picture.js";
import { toSvg } from "heed/save/drawing.js";
import { heatMaps } from "heed/save/heat_maps.js";
import { toPictureSvg } from "heed/save/picture_drawing.js";
import { toTextSvg } from "heed/save/text_drawing.js";
import { neuronsOf } from "heed/server/neurons.js";
import { stagesOf } from "heed/server/head_tensors.js";
import { stepsOf } from "heed/server/steps.js";
import { stepsSvg } from "heed/save/steps_drawing.js";
import { openingQuery } from "heed/views/neuron_view.js";
import { neuronsSvg } from "heed/save/neurons_drawing.js";
import { pinned as pinnedInSecond } from "heed/views/compare_view.js";
import { ablatedTitles, pairsOf, panelsOf, placeOf } from "heed/views/comparison.js";
import { gridSvg } from "heed/save/sweep_save.js";
import { inTitle } from "heed/save/svg.js";
import { lensSvg } from "heed/save/lens_save.js";
import { changeShown, changesOf, runWhole } from "heed/server/ablation.js";
import { globalMax } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/comparison.js").One} One */
/**
 * @typedef {object} Seen  what the page shows
 * @property {ViewProps["attention"]} attention @property {ViewProps["settings"]} settings @property {import("heed/data/display.js").Shown} shown
 * @property {string} title  name of the model @property {Record<string, string>} about
 * @property {import("heed/views/picture_view.js").Seen | null} picture @property {import("heed/views/compare_view.js").Side | null} second
 * @property {import("heed/page/generation.js").Text | null} generated @property {import("heed/data/patch.js").Grid | null} grid  of the view Patch
 * @property {import("heed/server/lens.js").Lens | null} lens  of the view Lens @property {import("heed/views/hooks.js").Run | null} run
 */

/** The view as SVG. @param {Seen} seen @returns {Promise<string>} */
export async function drawingOf(seen) {
  const { attention, settings, shown, title, about, picture, second, generated, grid, lens, run } = seen;
  if (grid) return gridSvg(grid, settings);
  if (lens) return lensSvg(lens, settings);
  await attention.arrival?.whole;
  if (settings.view === "compare") {
    const first = { attention, settings };
    const other = secondOf(first, second);
    return heatMaps(await panelsOf(first, other), wholeTitle(title, about, first, other));
  }
  if (generated && settings.kind !== "cross_weights") {
    const seen = picture && patchesIn(generated.prompt, picture.patches) ? picture : null;
    const opened = seen ? openedAt(settings, shown, seen) : settings;
    const text = toTextSvg(attention, shown, opened, title, generated, seen?.patches);
    return seen ? toPictureSvg(attention, shown, opened, title, seen, text) : text;
  }
  if (settings.view === "neurons" && run) {
    const query = settings.query ?? openingQuery(shown, attention);
    const neurons = await neuronsOf(run.model, { ...run.settings, ...placed(settings) }, run.input, query);
    return neuronsSvg(neurons, attention, settings, query, title);
  }
  const steps = settings.view === "steps" && run ? await stepsDrawing(run, attention, settings, title) : "";
  if (steps) return steps;
  if (settings.view === "ablate" && run && settings.ablated.length)
    return heatMaps(await ablated(run, settings), wholeTitle(title, about, { attention, settings }, null));
  if (picture && generated && settings.view === "generate")
    return toPictureSvg(attention, shown, openedAt(settings, shown, picture), title, picture);
  if (picture && settings.view === "picture") return toPictureSvg(attention, shown, settings, title, picture);
  return toSvg(attention, shown, settings, title, globalMax(attention, settings));
}

/** With the generated word that is looked at first, if none is pinned. @param {ViewProps["settings"]} settings
 *  @param {import("heed/data/display.js").Shown} shown @param {import("heed/views/picture_view.js").Seen} seen */
const openedAt = (settings, shown, { patches }) =>
  settings.query === null && settings.key === null ? { ...settings, query: openingWord(shown, patches) } : settings;

/** Which output and head. @param {ViewProps["settings"]} settings */
const placed = ({ kind, layer, head }) => ({ kind, layer, head });

/** The head that changes most, or the selected one, before and after heads are switched off.
 *  @param {import("heed/views/hooks.js").Run} run @param {ViewProps["settings"]} settings */
async function ablated({ model, input, attention, settings: asked }, settings) {
  const { attention: before } = await runWhole(model, asked, input);
  const { layer, head } = changeShown(changesOf(attention, before, asked.ablated), settings, false) ?? settings;
  const own = { ...settings, layer, head, combine: /** @type {const} */ ("none") };
  const place = placeOf(attention, own).replace(/^./, (letter) => letter.toUpperCase());
  const titles = ablatedTitles(attention, own).map((title) => `${place}, ${title}`);
  const [first, second, change] = await panelsOf(
    { attention: before, settings: own },
    { attention, settings: own },
    /** @type {[string, string, string]} */ (titles),
  );
  return [change, first, second]; // as on the page
}

/** The tensors of the view Steps; "" if they are too large to be drawn. @param {import("heed/views/hooks.js").Run} run
 *  @param {ViewProps["attention"]} attention @param {ViewProps["settings"]} settings @param {string} title  name of the model */
async function stepsDrawing({ model, input, settings: asked }, attention, { head, batch, query, key }, title) {
  const own = { ...asked, head, batch };
  const [stages, steps] = await Promise.all([stagesOf(model, own, input), stepsOf(model, own, input, query ?? 0, key)]);
  const pair = { query: query ?? 0, key: steps.key };
  const words = `query ${named(attention.rows, pair.query)} and key ${named(attention.columns, pair.key)}`;
  return stages.length ? stepsSvg(stages, pair, `${title}: head ${head}, ${words} are framed`) : "";
}

/** A place with its word, if it has one. @param {import("heed/data/attention.js").Label[]} labels @param {number} place */
const named = (labels, place) =>
  labels[place].text === String(place) ? String(place) : `${place} “${labels[place].text}”`;

/** The second side of a comparison, with what is pinned in it. @param {One} first @param {import("heed/views/compare_view.js").Side | null} second */
function secondOf({ attention, settings }, second) {
  if (!second?.attention) return null;
  const pinned = pinnedInSecond(settings, pairsOf(attention, second.attention));
  return { attention: second.attention, settings: { ...settings, ...second.settings, ...pinned } };
}

/** What both sides of a comparison have: the model, the output and the text. @param {string} title  name of the model
 *  @param {Record<string, string>} about @param {One} first @param {One | null} other */
function wholeTitle(title, { text = "" }, first, other) {
  const isShared = (/** @type {"model" | "kind" | "text"} */ key) =>
    !other || first.settings[key] === other.settings[key];
  const said = [
    isShared("model") && title,
    isShared("kind") && first.settings.kind.replaceAll("_", " "),
    isShared("text") && text && `“${inTitle(text)}”`,
  ];
  return said.filter(Boolean).join(", ");
}
