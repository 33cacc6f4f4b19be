// Two heads, layers, texts, models or options side by side, and the difference of the second from the first.
import { html, useMemo } from "vendor/preact.js";
import { Choice, HeadChoice, numbers } from "heed/views/controls.js";
import { differenceOf, namesOf, pairsOf } from "heed/views/comparison.js";
import { SideBySide } from "heed/views/side_by_side.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/**
 * @typedef {object} Side  the second side
 * @property {Attention | null} attention @property {string} [reason]  why there is none
 * @property {Settings} settings @property {ViewProps["set"]} set  undefined = as the first has it
 * @property {import("heed/save/commands.js").Request | null} [request]  on a server
 * @property {boolean} isSame  whether it is of the same answer @property {unknown} [panel]  the fields of its input
 */

/** @param {ViewProps & {second?: Side | null}} props */
export function CompareView({ attention, settings, set, second = null }) {
  const other = second?.attention ?? null;
  const pairs = useMemo(() => other && pairsOf(attention, other), [attention, other]);
  if (!second) return html`<p class="note">…</p>`;
  const { query, key } = pinned(settings, pairs);
  const others = { ...settings, ...second.settings, query, key, direction: settings.direction };
  const isOwnPin = settings.other?.query !== undefined || settings.other?.key !== undefined;
  const setFirst = (/** @type {Partial<Settings>} */ changes) => {
    if (isOwnPin && ("query" in changes || "key" in changes)) second.set({ query: undefined, key: undefined });
    set(changes);
  };
  /** A word that is pinned in the second is pinned in the first, too, if it has it. @param {Partial<Settings>} changes */
  const setSecond = (changes) => {
    const { query: ownQuery = query, key: ownKey = key, ...rest } = changes;
    const [row, column] = [placeIn(pairs?.rows, ownQuery), placeIn(pairs?.columns, ownKey)];
    const isInBoth = row !== undefined && column !== undefined;
    if (isInBoth) setFirst({ ...rest, query: row, key: column });
    else {
      second.set({ query: ownQuery, key: ownKey });
      set({ ...rest, query: null, key: null });
    }
  };
  const { layers, heads, axis } = other ?? attention;
  const own = settings.other;
  const place = (/** @type {"layer" | "head"} */ name, /** @type {string} */ title, /** @type {number} */ count) => {
    const isFollowing = own?.[name] === undefined && second.settings[name] === Math.min(settings[name], count - 1);
    const canFollow = isFollowing || name === "layer" || !second.isSame || own?.layer !== undefined; // else it is the next head
    const first = canFollow && { "": `same (${Math.min(settings[name], count - 1)})` };
    return html`<${Choice} label=${html`<span class="unseen">second </span>${title}`} value=${isFollowing ? "" : others[name]} options=${{ ...first, ...numbers(count) }}
      onChange=${(/** @type {string} */ value) => second.set({ [name]: value === "" ? undefined : Number(value) })} />`;
  };
  const sides = /** @type {const} */ ([
    { attention, settings },
    { attention: other ?? attention, settings: others },
  ]);
  const names = namesOf(...sides);
  const tools = [
    html`<${HeadChoice} attention=${attention} settings=${settings} set=${setFirst} />`,
    html`${layers > 1 && place("layer", axis, layers)} ${place("head", "head", heads)}`,
  ];
  return html`${second.panel && html`<section class="compared" aria-label="what to compare with">${second.panel}</section>`}
    <${SideBySide} first=${{ attention, settings, set: setFirst }} second=${other && { attention: other, settings: others, set: setSecond }}
      titles=${[`First: ${names[0]}`, `Second: ${names[1]}`, differenceOf(names, ...sides)]} isComparison=${true} tools=${tools} missing=${second.reason} />`;
}

/** The pinned words of the second: its own, or the counterparts of the first's.
 *  @param {Settings} settings @param {import("heed/views/comparison.js").Pairs | null} pairs */
export function pinned({ query, key, other }, pairs) {
  if (other?.query !== undefined || other?.key !== undefined)
    return { query: other.query ?? null, key: other.key ?? null };
  const counterpart = (/** @type {number[] | undefined} */ places, /** @type {number | null} */ place) =>
    place === null || !places || places[place] < 0 ? null : places[place];
  return { query: counterpart(pairs?.rows, query), key: counterpart(pairs?.columns, key) };
}

/** The place in the first of a word of the second; undefined if it has none. @param {number[] | undefined} places
 *  @param {number | null} place */
function placeIn(places, place) {
  if (place === null) return null;
  const found = places?.indexOf(place) ?? -1;
  return found < 0 ? undefined : found;
}
