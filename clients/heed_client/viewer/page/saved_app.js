// The page with its data inside: from `heed run --html`, in notebooks, and saved by the page itself.
import { html } from "vendor/preact.js";
import { fromBase64, toPicture } from "heed/save/saved.js";
import { changedOther, DEFAULTS, isWithoutHead, secondOf, withHead } from "heed/data/state.js";
import { useAddress } from "heed/page/address.js";
import { Provenance } from "heed/page/provenance.js";
import { usePromise } from "heed/views/hooks.js";
import { inText, setInText } from "heed/page/generation.js";
import { pinnedPart } from "heed/data/patch.js";
import { GENERATE, LENS, PATCH, PICTURE, VIEWS, Workspace } from "heed/page/workspace.js";

/** @typedef {import("heed/save/saved.js").Saved} Saved */
/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/** The second side of a comparison: another head or layer of the same answer, or the one that was saved beside it.
 *  @param {Attention} attention @param {Attention | null} second @param {Saved["second"]} saved
 *  @param {Settings} settings @param {(changes: Partial<Settings>) => void} set */
function sideOf(attention, second, saved, settings, set) {
  const setOther = (/** @type {Partial<Settings>} */ changes) => set({ other: changedOther(settings, changes) });
  const own = { ...secondOf(settings, attention.heads, !second), ...saved?.settings };
  return { attention: second ?? attention, settings: own, set: setOther, isSame: !second };
}

/** @param {{data: Saved}} props */
export function SavedApp({ data }) {
  const [chosen, setSettings] = useAddress({ ...DEFAULTS, ...data.settings });
  const settings = { ...withHead(chosen), kind: chosen.kind || data.kind };
  const { value, error } = usePromise(
    async () => ({
      attention: await fromBase64(data),
      second: data.second ? await fromBase64(data.second) : null,
      picture: data.picture ? await toPicture(data.picture) : null,
    }),
    [data],
  );
  const set = (/** @type {Partial<Settings>} */ changes) => setSettings((before) => ({ ...before, ...changes }));
  const isSquare = value !== null && value.attention.m === value.attention.n; // else its positions are not the patches
  const isText = data.generated && (settings.view === "generate" || settings.view === "");
  const generation = data.generated && { text: data.generated, actions: null };
  const sweep = data.sweep?.grid && { ...data.sweep, grid: pinnedPart(data.sweep.grid, settings.patch) };
  const lens = data.lens && { lens: data.lens, error: null, pinned: null };
  return html`<header class="top"><h1>${data.title}</h1></header>
    <main class="saved">
      ${error && html`<p role="alert">${error.message}</p>`}
      <${Provenance} about=${data.about ?? {}} />
      ${
        value &&
        html`<${Workspace} attention=${value.attention} settings=${isText ? inText(settings) : settings} title=${data.title} about=${data.about ?? {}} isOpening=${isWithoutHead(chosen)}
        set=${isText ? setInText(set) : set} views=${{ ...(isSquare && value.picture && PICTURE), ...(generation && GENERATE), ...VIEWS, ...(sweep && PATCH), ...(lens && LENS) }}
        extra=${{ generation, sweep, lens, second: sideOf(value.attention, value.second, data.second, settings, set), picture: value.picture }} />`
      }
    </main>`;
}
