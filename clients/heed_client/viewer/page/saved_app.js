// The page with its data inside: `heed run --html`, notebooks, and what the page itself saves.
import { html, useEffect, useState } from "vendor/preact.js";
import { fromBase64 } from "heed/save/saved.js";
import { DEFAULTS, fromFragment, toFragment } from "heed/data/state.js";
import { usePromise } from "heed/views/hooks.js";
import { Workspace } from "heed/page/workspace.js";

/** @typedef {import("heed/save/saved.js").Saved} Saved */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/** The second side of a comparison within one answer: another head or layer.
 *  @param {Attention} attention @param {Settings} settings @param {(changes: Partial<Settings>) => void} set */
function sameWith(attention, settings, set) {
  const other = settings.other ?? { head: (settings.head + 1) % attention.heads };
  const setOther = (/** @type {Partial<Settings>} */ changes) => set({ other: { ...other, ...changes } });
  return { attention, settings: { ...settings, ...other }, set: setOther };
}

/** @param {{data: Saved}} props */
export function SavedApp({ data }) {
  const start = { ...DEFAULTS, kind: data.kind, ...data.settings };
  const [settings, setSettings] = useState(location.hash.length > 1 ? fromFragment(location.hash) : start);
  const { value: attention, error } = usePromise(() => fromBase64(data), [data]);
  useEffect(() => {
    if (location.protocol !== "about:") history.replaceState(null, "", `#${toFragment(settings)}`);
  }, [settings]);
  const set = (/** @type {Partial<Settings>} */ changes) => setSettings((before) => ({ ...before, ...changes }));
  return html`<header class="top"><h1>${data.title}</h1></header>
    <main class="saved">
      ${error && html`<p role="alert">${error.message}</p>`}
      ${
        attention &&
        html`<${Workspace} attention=${attention} settings=${settings}
        title=${data.title} set=${set} extra=${{ second: sameWith(attention, settings, set) }} />`
      }
    </main>`;
}
