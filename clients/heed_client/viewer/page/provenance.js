// The origin of the weights, at the top of saved and printed pages.
import { html } from "vendor/preact.js";

/** @param {{about: Record<string, string>}} props  facts by their names */
export const Provenance = ({ about }) => html`<dl class="provenance">
  ${Object.entries(about).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;
