// Where the weights are from: over a saved page, and over what is printed.
import { html } from "vendor/preact.js";

/** @param {{about: Record<string, string>}} props  what is said, by its name */
export const Provenance = ({ about }) => html`<dl class="provenance">
  ${Object.entries(about).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;
