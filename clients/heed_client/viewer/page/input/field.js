// A field's error: a sentence beside it, to which the field refers.
import { html } from "vendor/preact.js";

/** Attributes of a field that may be wrong. @param {string} id  of the panel @param {string} name @param {Record<string, string>} errors */
export const invalid = (id, name, errors) =>
  errors[name] ? { "aria-invalid": "true", "aria-describedby": `${id}-${name}` } : {};

/** @param {{id: string, name: string, errors: Record<string, string>}} props */
export const FieldError = ({ id, name, errors }) =>
  errors[name] && html`<p class="field-error" role="alert" id=${`${id}-${name}`}>${errors[name]}</p>`;
