// Two heads, layers, texts, models or options side by side, and what the second has more or less than the first.
import { html, useMemo } from "vendor/preact.js";
import { Attention } from "heed/data/attention.js";
import { largest, renormalised } from "heed/data/display.js";
import { difference } from "heed/data/matrix.js";
import { Choice, numbers } from "heed/views/controls.js";
import { MatrixView } from "heed/views/matrix_view.js";
import { drawn, globalMax, usePromise } from "heed/views/hooks.js";
import { Selection } from "heed/views/selection.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Side  the second side
 * @property {Attention | null} attention @property {string} [reason]  why there is none
 * @property {Settings} settings @property {ViewProps["set"]} set
 * @property {unknown} [panel]  asks for its input
 */

/** What the second matrix has more (or less, if negative) than the first, as attention with one head.
 *  @param {ViewProps} one @param {ViewProps} other */
function between({ attention, settings }, { attention: second, settings: others }) {
  const load = async () => {
    const [before, after] = await Promise.all([attention.selected(settings), second.selected(others)]);
    const one = renormalised(before, attention.rows, attention.columns, settings);
    const other = renormalised(after, second.rows, second.columns, others);
    return difference(other, one);
  };
  const { m, n, rows, columns, axis } = attention;
  const small = () => ({ m: 0, n: 0, values: new Float32Array(), error: 0 });
  const all = async () => ({ numbers: (await load()).values, unit: 1 });
  return new Attention({
    layers: 1,
    heads: 1,
    m,
    n,
    rows,
    columns,
    axis,
    small,
    all,
    statistics: null,
    received: null,
    load,
    combine: null,
  });
}

/**
 * The largest value of both sides, for one scale of both; undefined if they have none in common, or are not there yet.
 * @param {Attention} attention @param {Settings} settings @param {Attention | null} other @param {Settings} others
 * @returns {number | undefined}
 */
function useTop(attention, settings, other, others) {
  const isScores = settings.kind === "scores";
  const fits = other !== null && settings.range !== "row" && isScores === (others.kind === "scores");
  const looks = ["layer", "head", "combine", "range", "renormalise", "hideSpecial", "hideFirst", "hidePadding"];
  const key = JSON.stringify(
    [settings, others].map((one) => [one.kind, ...looks.map((name) => one[/** @type {"head"} */ (name)])]),
  );
  const { value } = usePromise(async () => {
    if (!fits) return null;
    const top = async (/** @type {Attention} */ one, /** @type {Settings} */ its) =>
      globalMax(one, its) ?? largest(drawn(await one.selected(its), one, its).values, isScores);
    return { key, tops: await Promise.all([top(attention, settings), top(other, others)]) };
  }, [attention, other, key]);
  return value?.key === key ? Math.max(...value.tops) : undefined;
}

/** @param {Attention} attention @param {Settings} settings */
const named = ({ layers, axis }, { layer, head }) => `${layers > 1 ? `${axis} ${layer}, ` : ""}head ${head}`;

/** @param {ViewProps & {second?: Side | null}} props */
export function CompareView({ attention, settings, set, second = null }) {
  const other = second?.attention ?? null;
  const fits = other !== null && other.m === attention.m && other.n === attention.n;
  const change = useMemo(
    () => (fits && second && other ? between({ attention, settings, set }, { ...second, attention: other }) : null),
    [
      attention,
      second?.attention,
      settings.layer,
      settings.head,
      settings.combine,
      second?.settings.layer,
      second?.settings.head,
      second?.settings.combine,
      settings.renormalise,
      settings.hideSpecial,
      settings.hideFirst,
      settings.hidePadding,
    ],
  );
  const selected = { query: settings.query, key: settings.key, direction: settings.direction };
  const others = { ...settings, ...second?.settings, ...selected };
  const top = useTop(attention, settings, other, others);
  if (!second) return html`<p class="note">…</p>`;
  const shared = (/** @type {Settings} */ one) =>
    top === undefined ? one : { ...one, range: /** @type {const} */ ("global") };
  const { layers, heads, axis } = other ?? attention;
  const setSecond = (/** @type {Partial<Settings>} */ changes) => {
    const { query = settings.query, key = settings.key, direction = settings.direction, ...rest } = changes;
    set({ query, key, direction });
    if (Object.keys(rest).length) second.set(rest);
  };
  return html`<div class="sides">
    <section aria-label="first"><h2>First: ${named(attention, settings)}</h2>
      <div></div><${MatrixView} attention=${attention} settings=${shared(settings)} set=${set} top=${top} beside=${other} /></section>
    <section aria-label="second"><h2>Second: ${named(other ?? attention, others)}</h2>
      <div><div class="tools">
        ${
          layers > 1 &&
          html`<${Choice} label=${`second ${axis}`} value=${others.layer} options=${numbers(layers)}
          onChange=${(/** @type {string} */ value) => second.set({ layer: Number(value) })} />`
        }
        <${Choice} label="second head" value=${others.head} options=${numbers(heads)}
          onChange=${(/** @type {string} */ value) => second.set({ head: Number(value) })} />
      </div>
      ${second.panel}</div>
      ${
        other
          ? html`<${MatrixView} attention=${other} settings=${shared(others)} set=${setSecond} top=${top} beside=${attention} />
          <${Selection} attention=${other} settings=${others} set=${setSecond} />`
          : html`<p class="note" role="status">${second.reason}</p>`
      }</section>
    <section aria-label="difference"><h2>Second less first</h2><div></div>
      ${
        change
          ? html`<${MatrixView} attention=${change} settings=${{ ...settings, layer: 0, head: 0, combine: "none", kind: "difference", range: "matrix" }} set=${set} />`
          : other &&
            html`<p class="note">No difference is drawn: the first has ${attention.m} x ${attention.n} weights, the second
          ${" "}${other.m} x ${other.n}.</p>`
      }</section>
  </div>`;
}
