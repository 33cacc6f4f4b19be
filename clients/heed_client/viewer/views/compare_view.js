// Two heads, layers, texts, models or options side by side, and what the second has more or less than the first.
import { html, useMemo } from "vendor/preact.js";
import { Choice, numbers } from "heed/views/controls.js";
import { MatrixView } from "heed/views/matrix_view.js";
import { between, differenceOf, namesOf, ofDifference, shared, topOf } from "heed/views/comparison.js";
import { usePromise } from "heed/views/hooks.js";
import { Selection } from "heed/views/selection.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Side  the second side
 * @property {Attention | null} attention @property {string} [reason]  why there is none
 * @property {Settings} settings @property {ViewProps["set"]} set
 * @property {unknown} [panel]  asks for its input
 */

/**
 * The largest value of both sides, for one scale of both; null if they have none in common, or are not there yet.
 * @param {Attention} attention @param {Settings} settings @param {Attention | null} other @param {Settings} others
 */
function useTop(attention, settings, other, others) {
  const looks = ["layer", "head", "combine", "range", "renormalise", "hideSpecial", "hideFirst", "hidePadding"];
  const key = JSON.stringify(
    [settings, others].map((one) => [one.kind, ...looks.map((name) => one[/** @type {"head"} */ (name)])]),
  );
  const { value } = usePromise(
    async () => ({ key, top: other && (await topOf({ attention, settings }, { attention: other, settings: others })) }),
    [attention, other, key],
  );
  return value?.key === key ? value.top : null;
}

/** @param {ViewProps & {second?: Side | null}} props */
export function CompareView({ attention, settings, set, second = null }) {
  const other = second?.attention ?? null;
  const fits = other !== null && other.m === attention.m && other.n === attention.n;
  const change = useMemo(
    () =>
      fits && second && other
        ? between({ attention, settings }, { attention: other, settings: second.settings })
        : null,
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
  const { layers, heads, axis } = other ?? attention;
  const setSecond = (/** @type {Partial<Settings>} */ changes) => {
    const { query = settings.query, key = settings.key, direction = settings.direction, ...rest } = changes;
    set({ query, key, direction });
    if (Object.keys(rest).length) second.set(rest);
  };
  const names = namesOf({ attention, settings }, { attention: other ?? attention, settings: others });
  return html`<div class="sides">
    <section aria-label="first"><div class="side-head"><h2>First: ${names[0]}</h2></div>
      <${MatrixView} attention=${attention} settings=${shared(settings, top)} set=${set} top=${top ?? undefined} beside=${other} /></section>
    <section aria-label="second"><div class="side-head"><h2>Second: ${names[1]}</h2>
      <div class="tools">
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
          ? html`<${MatrixView} attention=${other} settings=${shared(others, top)} set=${setSecond} top=${top ?? undefined} beside=${attention} />
          <${Selection} attention=${other} settings=${others} set=${setSecond} />`
          : html`<p class="note" role="status">${second.reason}</p>`
      }</section>
    <section aria-label="difference"><div class="side-head">${change && html`<h2>${differenceOf(names)}</h2>`}</div>
      ${
        change
          ? html`<${MatrixView} attention=${change} settings=${ofDifference(settings)} set=${set} />`
          : other &&
            html`<p class="note">No difference to show: the first has ${attention.m} x ${attention.n} weights, the second
          ${" "}${other.m} x ${other.n}.</p>`
      }</section>
  </div>`;
}
