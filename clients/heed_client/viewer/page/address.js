// The settings of the page in its URL. Another view or model is a step, from which the browser goes back.
import { useEffect, useRef, useState } from "vendor/preact.js";
import { fromFragment, toFragment } from "heed/data/state.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

/** The settings, and how many times another URL has replaced them: by back, forward, or a link to this page.
 *  @param {Settings} start  where the URL has no settings */
export function useAddress(start) {
  const [entry, setEntry] = useState(0);
  const arrived = useRef({ settings: /** @type {Settings | null} */ (null), url: "" });
  const [settings, setSettings] = useState(() => (location.hash.length > 1 ? fromFragment(location.hash) : start));
  useEffect(() => {
    const fragment = `#${toFragment(settings)}`;
    if (location.protocol === "about:" || fragment === location.hash) return;
    if (arrived.current.settings === settings && arrived.current.url !== location.href) return; // another URL follows
    const before = fromFragment(location.hash);
    const isOtherView = before.view !== settings.view && location.hash.length > 1;
    const isStep = before.model === settings.model ? isOtherView : before.model !== ""; // "" was never shown
    if (isStep) history.pushState(null, "", fragment);
    else history.replaceState(null, "", fragment);
  }, [settings]);
  useEffect(() => {
    // Settings that were written since the event have changed location.hash.
    const change = (/** @type {HashChangeEvent} */ event) => {
      const next = fromFragment(new URL(event.newURL).hash);
      arrived.current = { settings: next, url: event.newURL };
      setSettings(next);
      setEntry((before) => before + 1);
    };
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return /** @type {const} */ ([settings, setSettings, entry]);
}
