// Labelled choices and switches.
import { html } from "vendor/preact.js";

/**
 * A labelled choice.
 * @param {{label: string, value: string | number, options: Record<string, string>, onChange: (value: string) => void}} props
 */
export const Choice = ({ label, value, options, onChange }) => html`<label>${label}
  <select value=${String(value)} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
    ${Object.entries(options).map(([name, title]) => html`<option value=${name} selected=${name === String(value)}>${title}</option>`)}
  </select></label>`;

/** @param {{label: string, checked: boolean, onChange: (checked: boolean) => void}} props */
export const Switch = ({ label, checked, onChange }) => html`<label>
  <input type="checkbox" checked=${checked} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.checked)} /> ${label}</label>`;

/** The options 0, 1, ... of a choice. @param {number} count @returns {Record<string, string>} */
export const numbers = (count) => Object.fromEntries(Array.from({ length: count }, (_, i) => [i, String(i)]));
