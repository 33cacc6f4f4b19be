// A field's error: a sentence beside it, to which the field refers.
import { html } from "vendor/preact.js";

/** Attributes of a field that may be wrong. @param {string} name @param {Record<string, string>} errors */
export const invalid = (name, errors) => (errors[name] ? { "aria-invalid": "true", "aria-describedby": `error-${name}` } : {});

/** @param {{name: string, errors: Record<string, string>}} props */
export const FieldError = ({ name, errors }) =>
  errors[name] && html`<p class="field-error" role="alert" id=${`error-${name}`}>${errors[name]}</p>`;
