import { html } from "vendor/preact.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */

/** @param {ViewProps} props */
export function MatrixView({ attention }) {
  return html`<p>${attention.m} x ${attention.n}</p>`;
}
