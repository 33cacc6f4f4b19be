// What the colours of a view stand for.
import { html, useMemo } from "vendor/preact.js";
import { css } from "heed/data/palettes.js";

const STOPS = 16; // of the gradient

/** @param {{shown: import("heed/data/display.js").Shown, table: Uint32Array}} props */
export function Legend({ shown, table }) {
  const { low, high, isDiverging, levels } = shown;
  const isMasked = useMemo(() => levels.some(Number.isNaN), [levels]);
  const gradient = useMemo(() => {
    const stops = Array.from({ length: STOPS + 1 }, (_, i) => css(table, i / STOPS));
    return `linear-gradient(to right, ${stops.join(",")})`;
  }, [table]);
  const ends = Number.isNaN(high)
    ? [isDiverging ? "lowest of the row" : "0", "highest of the row"]
    : [number(low), number(high)];
  return html`<div class="legend" role="img" aria-label=${`colours from ${ends[0]} to ${ends[1]}`}>
    <span>${ends[0]}</span><i style=${{ backgroundImage: gradient }}></i><span>${ends[1]}</span>
    ${isMasked && html`<i class="hatched"></i><span>masked</span>`}
  </div>`;
}

/** @param {number} value */
const number = (value) =>
  value === 0 ? "0" : Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
