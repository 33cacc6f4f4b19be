// The settings of the page in its URL. Another view or model, and a picture that is added or removed, is a step, from which
// the browser goes back.
import { useEffect, useLayoutEffect, useRef, useState } from "vendor/preact.js";
import { fromFragment, toFragment } from "heed/data/state.js";

/** @typedef {import("heed/data/state.js").Chosen} Chosen */

/** The settings, and how many times another URL has replaced them: by back, forward, or a link to this page.
 *  @param {Chosen} start  where the URL has no settings */
export function useAddress(start) {
  const [entry, setEntry] = useState(0);
  const arrived = useRef(0); // as `entry`, before the next rendering
  const [settings, setSettings] = useState(() => (location.hash.length > 1 ? fromFragment(location.hash) : start));
  useLayoutEffect(() => {
    // in the frame in which the change is seen, so that Back leads from it
    const fragment = `#${toFragment(settings)}`;
    if (location.protocol === "about:" || fragment === location.hash) return;
    if (arrived.current !== entry) return; // another URL has replaced these settings since
    const before = fromFragment(location.hash);
    const isOtherView =
      location.hash.length > 1 && (before.view !== settings.view || before.picture !== settings.picture);
    const isStep = before.model === settings.model ? isOtherView : before.model !== ""; // "" was never shown
    if (isStep) history.pushState(null, "", fragment);
    else history.replaceState(null, "", fragment);
  }, [settings]);
  useEffect(() => {
    // hashchange comes later, when settings may have been written to the URL.
    const change = () => {
      setSettings(fromFragment(location.hash));
      setEntry(++arrived.current);
    };
    addEventListener("popstate", change);
    return () => removeEventListener("popstate", change);
  }, []);
  return /** @type {const} */ ([settings, setSettings, entry]);
}
