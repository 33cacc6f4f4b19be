// All heads at once: layers x heads as small pictures, which can be sorted by what the heads do.
import { html, useEffect, useMemo, useRef } from "vendor/preact.js";
import { STATISTICS } from "heed/data/matrix.js";
import { paintSmall, useTheme } from "heed/views/draw/canvas.js";
import { Choice } from "heed/views/controls.js";
import { globalMax } from "heed/views/hooks.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

const SORTS = {
  layer: "layer and head",
  entropy: "entropy",
  distance: "mean distance",
  first: "share on the first token",
  diagonal: "share on the diagonal",
  previous: "share on the previous token",
};

/** @param {ViewProps} props */
export function ModelView({ attention, settings, set }) {
  const { layers, heads, isSelf } = attention;
  const statistics = settings.kind.endsWith("weights") ? attention.statistics : null; // no shares of scores
  const which = STATISTICS.indexOf(settings.sort);
  const places = useMemo(() => {
    const all = Array.from({ length: layers * heads }, (_, i) => ({ layer: Math.floor(i / heads), head: i % heads }));
    if (which < 0 || !statistics) return all;
    return all.sort(
      (one, other) => statistics(other.layer, other.head)[which] - statistics(one.layer, one.head)[which],
    );
  }, [attention, which]);
  const top = useMemo(() => globalMax(attention, settings), [attention, settings.range]);
  useEffect(() => {
    performance.mark("heed-model-view-drawn");
  }, [attention]);
  const isGrid = which < 0;
  const { layer: plain, entropy, first } = SORTS;
  const options = !statistics ? { layer: plain } : isSelf ? SORTS : { layer: plain, entropy, first };
  return html`<div class="tools"><${Choice} label="sort by" value=${isGrid ? "layer" : settings.sort} options=${options}
      onChange=${(/** @type {string} */ sort) => set({ sort })} /></div>
    <div class="thumbnails" style=${isGrid ? { gridTemplateColumns: `repeat(${heads}, minmax(2.5rem, 12rem))` } : {}}>
      ${places.map(
        ({ layer, head }) => html`<${Thumbnail} key=${`${layer}.${head}`} attention=${attention} settings=${settings}
        layer=${layer} head=${head} top=${top} isOff=${settings.ablated.some(([l, h]) => l === layer && h === head)}
        number=${which >= 0 && statistics ? statistics(layer, head)[which] : null}
        open=${() => {
          set({ view: "head", layer, head, heads: [], combine: "none" });
          document.getElementById("tab-head")?.focus();
        }} />`,
      )}
    </div>`;
}

/** @param {ViewProps & {layer: number, head: number, top?: number, number: number | null, isOff: boolean, open: () => void}} props */
function Thumbnail({ attention, settings, layer, head, top, number, isOff, open }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const theme = useTheme();
  const {
    scale,
    range,
    threshold,
    kind,
    palette: colours,
    hideSpecial,
    hideFirst,
    hidePadding,
    renormalise,
  } = settings;
  useEffect(() => {
    const element = /** @type {HTMLCanvasElement} */ (canvas.current);
    paintSmall(element, attention.small(layer, head), attention, settings, top);
  }, [
    attention,
    layer,
    head,
    theme,
    scale,
    range,
    threshold,
    kind,
    colours,
    top,
    hideSpecial,
    hideFirst,
    hidePadding,
    renormalise,
  ]);
  const name = attention.layers > 1 ? `${layer}.${head}` : `${head}`;
  const label = attention.layers > 1 ? `${attention.axis} ${layer}, head ${head}` : `head ${head}`;
  return html`<button class=${`thumbnail ${isOff ? "off" : ""}`} onClick=${open}
    aria-label=${`${label}${number === null ? "" : `, ${number.toFixed(3)}`}${isOff ? ", switched off" : ""}`}>
    <canvas ref=${canvas} aria-hidden="true"></canvas><span>${name}${number === null ? "" : html` <b>${number.toFixed(2)}</b>`}</span>
  </button>`;
}
