// The bar at the top: the model, the state of the server, the API key.
import { html, useState } from "vendor/preact.js";
import * as api from "heed/server/api.js";
import { remember, remembered } from "heed/data/storage.js";
import { Choice, modelChoices } from "heed/views/controls.js";
import { ServerPanel } from "heed/page/server_panel.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

/**
 * @param {{models: api.Line[], settings: Settings, error: Error | null,
 *   onKey: (key: string) => void, onModel: (name: string) => void}} props
 */
export function Header({ models, settings, error, onKey, onModel }) {
  const [isOpen, setOpen] = useState(false);
  const status = error instanceof api.ServerError ? error.status : null;
  return html`<header class=${`top ${isOpen ? "open" : ""}`}>
    <h1>Heed</h1>
    ${
      models.length > 0 &&
      html`<${Choice} label="model" value=${settings.model}
      options=${modelChoices(models)} onChange=${onModel} />`
    }
    <span class="space"></span>
    <button aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Server</button>
    <a href="docs">API</a>
    <${Theme} />
  </header>
  ${(status === 401 || status === 403) && html`<${KeyForm} onKey=${onKey} message=${/** @type {Error} */ (error).message} />`}
  ${isOpen && html`<${ServerPanel} />`}`;
}

/** @param {{onKey: (key: string) => void, message: string}} props */
function KeyForm({ onKey, message }) {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    onKey(new FormData(event.currentTarget).get("key")?.toString().trim() ?? "");
  };
  return html`<form class="key" onSubmit=${submit}>
    <label>API key <input name="key" type="password" autocomplete="off" required aria-describedby="key-message" /></label>
    <button>use this key</button>
    <span id="key-message" role="alert">${message}. The key is kept until this tab is closed.</span>
  </form>`;
}

const THEME = "heed-theme"; // in localStorage

/** The theme that was chosen the last time. */
export function restoreTheme() {
  const theme = remembered("localStorage", THEME);
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}

/** Light, dark, or the system's theme. */
function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "");
  const change = (/** @type {string} */ value) => {
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    remember("localStorage", THEME, value);
    setTheme(value);
    dispatchEvent(new Event("heed-theme"));
  };
  return html`<${Choice} label="theme" value=${theme} options=${{ "": "system", light: "light", dark: "dark" }} onChange=${change} />`;
}
