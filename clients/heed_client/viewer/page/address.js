// The settings of the page in its URL. Another view or model is a step, from which the browser goes back.
import { useEffect, useState } from "vendor/preact.js";
import { fromFragment, toFragment } from "heed/data/state.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

/** @param {Settings} start  where the URL has no settings */
export function useAddress(start) {
  const [settings, setSettings] = useState(() => (location.hash.length > 1 ? fromFragment(location.hash) : start));
  useEffect(() => {
    const fragment = `#${toFragment(settings)}`;
    if (location.protocol === "about:" || fragment === location.hash) return;
    const before = fromFragment(location.hash);
    const isOtherView = before.view !== settings.view && location.hash.length > 1;
    const isStep = before.model === settings.model ? isOtherView : before.model !== ""; // "" was never shown
    if (isStep) history.pushState(null, "", fragment);
    else history.replaceState(null, "", fragment);
  }, [settings]);
  useEffect(() => {
    // Back, forward, or a link to this page. Settings that were written since the event have changed location.hash.
    const change = (/** @type {HashChangeEvent} */ event) => setSettings(fromFragment(new URL(event.newURL).hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return /** @type {const} */ ([settings, setSettings]);
}
