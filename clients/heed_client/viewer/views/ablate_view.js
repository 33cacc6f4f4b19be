// Heads are switched off, and what that changes: the other heads' weights, the output, the next tokens.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { distance, nextTokens, outputOf, runWhole } from "heed/server/ablation.js";
import { format } from "heed/data/display.js";
import { difference, largestChange } from "heed/data/matrix.js";
import { css, palette, textOn } from "heed/data/palettes.js";
import { paintSmall, useTheme } from "heed/views/draw/canvas.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/data/state.js").Place} Place */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */

const LISTED = 5; // largest changes of a head

/** @param {ViewProps & {run: import("heed/views/hooks.js").Run & {wanted: Settings}}} props
 *    `wanted` are the settings of the page, to which the run that is shown may not be the answer yet */
export function AblateView({ attention, settings, set, run }) {
  const { model, input, request, wanted } = run;
  const asked = JSON.stringify(withoutHeads(run.settings));
  const whole = usePromise(
    async () => ({ model, request, asked, ...(await runWhole(model, run.settings, input)) }),
    [model, request, asked],
  );
  const part = usePromise(async () => {
    const [output, tokens] = await Promise.all([
      outputOf(model, run.settings, input),
      nextTokens(model, run.settings, input),
    ]);
    return { input, output, tokens };
  }, [input]);
  const error = whole.error ?? part.error;
  const { value } = whole;
  // With all heads, of the input and the options of the run that is shown.
  const same = value?.model === model && value.request === request && value.asked === asked ? value : null;
  const isCurrent =
    JSON.stringify([withoutHeads(wanted), wanted.ablated]) ===
    JSON.stringify([withoutHeads(run.settings), run.settings.ablated]);
  const before = same?.attention ?? null;
  return html`<p class="note">A head that is switched off adds nothing to the output. ${wanted.ablated.length ? "Colours show how the weights of every head change." : "Switch a head off to see what changes."}</p>
    ${error && html`<p role="alert">${error.message}</p>`}
    <${Grid} attention=${attention} before=${isCurrent && attention.isWhole ? before : null} settings=${{ ...settings, ablated: wanted.ablated }} set=${set} />
    <div style=${{ visibility: isCurrent ? "visible" : "hidden" }}>
    ${before && html`<${Matrices} attention=${attention} before=${before} settings=${settings} />`}
    ${
      same &&
      part.value?.input === input &&
      html`
      <${Outputs} labels=${attention.rows} before=${same.output} after=${part.value.output} />
      ${same.tokens && part.value.tokens && html`<${NextTokens} before=${same.tokens} after=${part.value.tokens} />`}`
    }</div>`;
}

/** What is run, but for the heads that are off.
 *  @param {Settings} settings */
const withoutHeads = ({ text, pair, target, random, sentence, kind, batch, parameters }) => [
  text,
  pair,
  target,
  random,
  sentence,
  kind,
  batch,
  parameters,
];

/** Layers x heads: a picture of what changes, and a switch.
 *  @param {ViewProps & {before: Attention | null}} props */
function Grid({ attention, before, settings, set }) {
  const { layers, heads } = attention;
  const { ablated } = settings;
  const grid = useRef(/** @type {HTMLElement | null} */ (null));
  const all = (/** @type {number} */ count) => [...Array(count).keys()];
  const isOff = (/** @type {number} */ layer, /** @type {number} */ head) =>
    ablated.some(([l, h]) => l === layer && h === head);
  const without = (/** @type {(place: Place) => boolean} */ left) => ablated.filter((place) => !left(place));
  const toggle = (/** @type {number} */ layer, /** @type {number} */ head) =>
    set({ ablated: isOff(layer, head) ? without(([l, h]) => l === layer && h === head) : [...ablated, [layer, head]] });
  const changes = useMemo(
    () =>
      before &&
      all(layers).map((layer) =>
        all(heads).map((head) => difference(attention.small(layer, head), before.small(layer, head))),
      ),
    [attention, before],
  );
  // The weights of heads that are off became 0, which is no news.
  const top = useMemo(
    () =>
      changes &&
      Math.max(
        0,
        ...changes.flatMap((row, layer) =>
          row.map(({ values }, head) => (isOff(layer, head) ? 0 : largestChange(values))),
        ),
      ),
    [changes],
  );
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const { place, kind } = /** @type {HTMLElement} */ (event.target).dataset;
    if (!step || !place) return;
    const [layer, head] = place.split(".").map(Number);
    const next = grid.current?.querySelector(
      /** @type {"button"} */ (`[data-kind="${kind}"][data-place="${layer + step[0]}.${head + step[1]}"]`),
    );
    next?.focus();
    event.preventDefault();
  };
  return html`<table class="heads" ref=${grid} onKeyDown=${move}>
      <caption><button disabled=${ablated.length === 0} onClick=${() => set({ ablated: [] })}>switch all on</button>
        ${" "}${ablated.length} of ${layers * heads} heads are off${top !== null && `; the weights of the others change by at most ${format(top)}`}</caption>
      <thead><tr><td></td>${all(heads).map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
      <tbody>${all(layers).map(
        (layer) => html`<tr>
        <th scope="row">${layers > 1 && html`layer ${layer}`}
          <button aria-label=${`layer ${layer}: all off`} onClick=${() => set({ ablated: [...without(([l]) => l === layer), ...all(heads).map((head) => /** @type {Place} */ ([layer, head]))] })}>all off</button>
          <button aria-label=${`layer ${layer}: all on`} onClick=${() => set({ ablated: without(([l]) => l === layer) })}>all on</button></th>
        ${all(heads).map((head) => {
          const change = changes?.[layer][head];
          const whole = ablated.length === 0 && attention.isWhole ? attention.small(layer, head) : null;
          return html`<td>
            <button class="thumbnail" data-kind="change" data-place=${`${layer}.${head}`} aria-pressed=${settings.layer === layer && settings.head === head}
              aria-label=${`layer ${layer}, head ${head}${change ? `: changes by at most ${format(largestChange(change.values))}` : ""}`}
              onClick=${() => set({ layer, head, combine: "none" })}>
              ${
                whole
                  ? html`<${Picture} matrix=${whole} attention=${attention} settings=${settings}
                      top=${largestChange(whole.values) || 1} isDifference=${false} />`
                  : change
                    ? html`<${Picture} matrix=${change} attention=${attention} settings=${settings} top=${top || 1} isDifference=${true} />`
                    : html`<canvas aria-hidden="true"></canvas>`
              }</button>
            <button class="toggle" data-kind="switch" data-place=${`${layer}.${head}`} aria-pressed=${isOff(layer, head)}
              aria-label=${`${isOff(layer, head) ? "off" : "on"}: switch off layer ${layer}, head ${head}`} onClick=${() => toggle(layer, head)}>${isOff(layer, head) ? "off" : "on"}</button></td>`;
        })}</tr>`,
      )}</tbody></table>`;
}

/** @param {{matrix: Matrix, attention: Attention, settings: Settings, top: number, isDifference: boolean}} props */
function Picture({ matrix, attention, settings, top, isDifference }) {
  useTheme(); // draws again when it changes
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    const looks = { ...settings, range: /** @type {const} */ ("global"), renormalise: false };
    const drawn = isDifference ? { ...looks, kind: "difference", threshold: 0 } : looks;
    paintSmall(/** @type {HTMLCanvasElement} */ (canvas.current), matrix, attention, drawn, top);
  });
  return html`<canvas ref=${canvas} aria-hidden="true"></canvas>`;
}

/** The selected head before and after, and what changed. @param {Omit<ViewProps, "set"> & {before: Attention}} props */
function Matrices({ attention, before, settings }) {
  const { layer, head } = settings;
  const { value } = usePromise(async () => {
    const [one, other] = await Promise.all([before.matrix(layer, head), attention.matrix(layer, head)]);
    return { one, other, change: difference(other, one) };
  }, [attention, before, layer, head]);
  if (!value) return null;
  const largest = largestChange(value.change.values);
  const top = Math.max(largestChange(value.one.values), largestChange(value.other.values)) || 1;
  const draw = (
    /** @type {string} */ title,
    /** @type {Matrix} */ matrix,
    /** @type {boolean} */ isDifference,
  ) => html`<figure><figcaption>${title}</figcaption>
    <${Picture} matrix=${matrix} attention=${attention} settings=${settings} top=${isDifference ? largest || 1 : top} isDifference=${isDifference} />
    </figure>`;
  return html`<section aria-label="selected head"><h2>${attention.layers > 1 ? `Layer ${layer}, head ${head}` : `Head ${head}`}</h2><div class="figures">
    ${draw("before: all heads on", value.one, false)} ${draw("after: some off", value.other, false)}
    ${draw(`change, ${format(-largest, 0)} to ${format(largest, 0)}`, value.change, true)}</div>
    <${Changes} attention=${attention} before=${value.one} change=${value.change} /></section>`;
}

/** The largest changes of a head in words. @param {{attention: Attention, before: Matrix, change: Matrix}} props */
function Changes({ attention: { rows, columns }, before, change }) {
  const { n, values } = change;
  /** @type {number[]} */
  const places = [];
  const size = (/** @type {number} */ place) => Math.abs(values[place]);
  for (let place = 0; place < values.length; place++) {
    if (!(size(place) > 0) || !Number.isFinite(values[place])) continue;
    if (places.length === LISTED && !(size(place) > size(places[LISTED - 1]))) continue;
    places.push(place);
    places.sort((one, other) => size(other) - size(one)).splice(LISTED);
  }
  if (places.length === 0) return html`<p class="note">None of its weights changed.</p>`;
  return html`<ol class="changes" aria-label="largest changes">${places.map(
    (place) => html`<li>“${rows[Math.floor(place / n)].text}” looks ${values[place] > 0 ? "more" : "less"} at
      ${" "}“${columns[place % n].text}”: <b>${format(before.values[place])}</b> → <b>${format(before.values[place] + values[place])}</b></li>`,
  )}</ol>`;
}

/** @param {{labels: import("heed/data/attention.js").Label[], before: import("heed/server/ablation.js").Output | null, after: import("heed/server/ablation.js").Output | null}} props */
function Outputs({ labels, before, after }) {
  useTheme(); // draws again when it changes
  if (!before || !after) return html`<p class="note">The output is too large to compare here.</p>`;
  if (before.rows.length !== after.rows.length) return null;
  const each = before.rows.map((row, i) => distance(row, after.rows[i]));
  const top = Math.max(...each.map(({ largest }) => largest)) || 1;
  const colours = palette("auto");
  return html`<section aria-label="change of the output"><h2>Output: cosine similarity, largest difference</h2>
    <ol class="chips">${each.map(
      ({ cosine, largest }, i) => html`<li
      style=${{ background: css(colours, largest / top), color: textOn(colours, largest / top) }}>
      <b>${each.length === labels.length ? labels[i].text : i}</b> ${cosine.toFixed(4)} <span>${format(largest)}</span></li>`,
    )}</ol></section>`;
}

/** Bars before and after; a token that is not among those of one list is less probable than the last of it.
 *  @param {{before: import("heed/server/ablation.js").NextToken[], after: import("heed/server/ablation.js").NextToken[]}} props */
function NextTokens({ before, after }) {
  const tokens = new Map([...before, ...after].map(({ id, token }) => [id, token]));
  const top = Math.max(...[...before, ...after].map(({ probability }) => probability));
  const bar = (/** @type {typeof before} */ list, /** @type {number} */ id) => {
    const found = list.find((token) => token.id === id);
    const last = list[list.length - 1].probability;
    return html`<td><span class="chance" style=${{ width: `${(100 * (found?.probability ?? 0)) / top}%` }}></span>
      ${found ? format(found.probability) : `< ${format(last)}`}</td>`;
  };
  return html`<section aria-label="next tokens"><h2>Next token</h2><table class="chances">
    <thead><tr><th scope="col">token</th><th scope="col">all heads on</th><th scope="col">some off</th></tr></thead>
    <tbody>${[...tokens].map(([id, token]) => html`<tr><th scope="row">${token ?? id}</th>${bar(before, id)}${bar(after, id)}</tr>`)}</tbody>
  </table></section>`;
}
