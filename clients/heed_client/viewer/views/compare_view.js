// Two heads, layers, texts, models or options side by side, and what the second has more or less than the first.
import { html, useMemo } from "vendor/preact.js";
import { Attention } from "heed/data/attention.js";
import { Choice } from "heed/views/controls.js";
import { MatrixView } from "heed/views/matrix_view.js";
import { Selection } from "heed/views/selection.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {ViewProps & {panel?: unknown}} Side  the second side; `panel` asks for its input
 */

/** What the second matrix has more (or less, if negative) than the first, as attention with one head.
 *  @param {ViewProps} one @param {ViewProps} other */
function difference({ attention, settings }, { attention: second, settings: others }) {
  const load = async () => {
    const [before, after] = await Promise.all([attention.selected(settings), second.selected(others)]);
    const values = after.values.map((value, i) => (value === before.values[i] ? 0 : value - before.values[i]));
    return { ...before, values, error: before.error + after.error };
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
    load,
    combine: null,
  });
}

/** @param {number} count */
const numbers = (count) => Object.fromEntries(Array.from({ length: count }, (_, i) => [i, String(i)]));

/** @param {ViewProps & {second?: Side | null}} props */
export function CompareView({ attention, settings, set, second = null }) {
  const fits = second && second.attention.m === attention.m && second.attention.n === attention.n;
  const between = useMemo(
    () => (fits && second ? difference({ attention, settings, set }, second) : null),
    [
      attention,
      second?.attention,
      settings.layer,
      settings.head,
      settings.combine,
      second?.settings.layer,
      second?.settings.head,
      second?.settings.combine,
    ],
  );
  if (!second) return html`<p class="note">…</p>`;
  const selected = { query: settings.query, key: settings.key, direction: settings.direction };
  const others = { ...second.settings, ...selected };
  const { layers, heads, axis } = second.attention;
  const setSecond = (/** @type {Partial<Settings>} */ changes) => {
    const { query = settings.query, key = settings.key, direction = settings.direction, ...rest } = changes;
    set({ query, key, direction });
    if (Object.keys(rest).length) second.set(rest);
  };
  return html`<div class="sides">
    <section aria-label="first"><h2>First</h2><${MatrixView} attention=${attention} settings=${settings} set=${set} /></section>
    <section aria-label="second"><h2>Second</h2>
      <div class="tools">
        ${
          layers > 1 &&
          html`<${Choice} label=${`second ${axis}`} value=${others.layer} options=${numbers(layers)}
          onChange=${(/** @type {string} */ value) => second.set({ layer: Number(value) })} />`
        }
        <${Choice} label="second head" value=${others.head} options=${numbers(heads)}
          onChange=${(/** @type {string} */ value) => second.set({ head: Number(value) })} />
      </div>
      ${second.panel}
      <${MatrixView} attention=${second.attention} settings=${others} set=${setSecond} />
      <${Selection} attention=${second.attention} settings=${others} set=${setSecond} /></section>
    <section aria-label="difference"><h2>Second less first</h2>
      ${
        between
          ? html`<${MatrixView} attention=${between} settings=${{ ...settings, layer: 0, head: 0, combine: "none", kind: "difference", range: "matrix" }} set=${set} />`
          : html`<p class="note">No difference is drawn: the first has ${attention.m} x ${attention.n} weights, the second
          ${" "}${second.attention.m} x ${second.attention.n}.</p>`
      }</section>
  </div>`;
}
