// Code that views share: their properties, promises as state, and the selected matrix as it is drawn.
import { useEffect, useRef, useState } from "vendor/preact.js";
import { drawnHeads, show } from "heed/data/display.js";
import { join } from "heed/data/matrix.js";
import { remember, remembered } from "heed/data/storage.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {(changes: Partial<Settings>) => void} Set  changes the settings of the page */
/**
 * @typedef {object} ViewProps  the properties of every view
 * @property {Attention} attention
 * @property {Settings} settings
 * @property {Set} set
 */

/**
 * @typedef {object} Answer  of a run on the server
 * @property {import("heed/server/api.js").Model} model
 * @property {import("heed/server/run.js").Input} input
 * @property {Attention} attention
 * @property {Settings} settings  with which it was run
 * @property {import("heed/server/run.js").Request | null} request
 * @property {boolean} [isOfDecoder]  whether the model has generated the decoder's text
 */
/** @typedef {import("heed/server/run.js").Request} Request */
/** @typedef {Answer & {setRequest: (change: (before: Request | null) => Request) => void}} Run  the properties of views that need a server */

/**
 * A promise's value; the last one until the next arrives, null before the first.
 * @template T
 * @param {(begin: (value: T) => void) => Promise<T>} make  may call `begin` with a value to show until its end @param {unknown[]} dependencies
 * @returns {{value: T | null, error: Error | null, isBusy: boolean}}
 */
export function usePromise(make, dependencies) {
  const [state, setState] = useState({
    value: /** @type {T | null} */ (null),
    error: /** @type {Error | null} */ (null),
    isBusy: true,
  });
  useEffect(() => {
    let isCurrent = true;
    setState(({ value }) => ({ value, error: null, isBusy: true }));
    make((value) => isCurrent && setState({ value, error: null, isBusy: true })).then(
      (value) => isCurrent && setState({ value, error: null, isBusy: false }),
      (error) => isCurrent && error.name !== "AbortError" && setState(({ value }) => ({ value, error, isBusy: false })),
    );
    return () => {
      isCurrent = false;
    };
  }, dependencies);
  return state;
}

/** Whether a part of the page is open, for as long as the tab is. @param {string} name */
export function useOpen(name) {
  const key = `heed-open-${name}`;
  const [isOpen, setOpen] = useState(() => remembered("sessionStorage", key) === "true");
  const change = (/** @type {boolean} */ next) => {
    remember("sessionStorage", key, String(next));
    setOpen(next);
  };
  return /** @type {const} */ ([isOpen, change]);
}

/**
 * The selected matrix, and its visible part; null until it arrives.
 * @param {Attention} attention @param {Settings} settings @param {number} [top]  of the global range; else that of all heads
 */
export function useShown(attention, settings, top) {
  const { layer, head, combine } = settings;
  const { value, error } = usePromise(
    async () => ({ attention, layer, head, combine, matrix: await attention.selected(settings) }),
    [attention, layer, head, combine],
  );
  const isOwn =
    value?.attention === attention && value.layer === layer && value.head === head && value.combine === combine;
  const matrix = isOwn ? value.matrix : attention.peek(settings);
  const shown = matrix && drawn(matrix, attention, settings, top);
  return { matrix, shown, error };
}

/** The settings, with the last head of this attention whose matrix has arrived: a view keeps it while the next one is loaded.
 *  @param {Attention} attention @param {Settings} settings @returns {Settings} */
export function useArrived(attention, settings) {
  const { layer, head, combine } = settings;
  const { shown, error } = useShown(attention, settings);
  const wanted = { attention, place: { layer, head, combine } };
  const last = useRef(wanted);
  if (shown || error || last.current.attention !== attention) last.current = wanted;
  return { ...settings, ...last.current.place };
}

/**
 * What the numbers of a view are of: in Head the mean of the heads whose lines are drawn, else the selected matrix.
 * @param {Attention} attention @param {Settings} settings
 */
export function useNumbers(attention, settings) {
  const selected = useShown(attention, settings);
  const { layer } = settings;
  const heads = drawnHeads(attention, settings);
  const places = `${layer}.${heads}`;
  const { value } = usePromise(async () => {
    if (heads.length < 2) return null;
    const matrices = await Promise.all(heads.map((head) => attention.matrix(layer, head)));
    return { attention, places, matrix: join(matrices, "mean") };
  }, [attention, places]);
  if (heads.length < 2) return selected;
  const matrix = value?.attention === attention && value.places === places ? value.matrix : null;
  return { ...selected, matrix, shown: matrix && drawn(matrix, attention, settings) };
}

const DRAWN = 2; // ways in which one matrix is drawn at the same time
/** @typedef {import("heed/data/display.js").Shown} Shown */
/** @type {WeakMap<Matrix, Map<string, Shown>>} */
const cache = new WeakMap();

/** The visible part of a matrix, computed once for the view, the selection and the menu.
 *  @param {Matrix} matrix @param {Attention} attention @param {Settings} settings
 *  @param {number} [top]  of the global range; else that of all heads */
export function drawn(matrix, attention, settings, top = globalMax(attention, settings)) {
  const { hideSpecial, hideFirst, hidePadding, renormalise, scale, range, threshold, kind } = settings;
  const looks = [hideSpecial, hideFirst, hidePadding, renormalise, scale, range, threshold, kind];
  const key = JSON.stringify([...looks, top]);
  const known = cache.get(matrix) ?? /** @type {Map<string, Shown>} */ (new Map());
  const shown = known.get(key) ?? show(matrix, attention.rows, attention.columns, settings, top);
  known.delete(key); // the most recently used is removed last
  known.set(key, shown);
  const [oldest] = known.keys();
  if (known.size > DRAWN) known.delete(oldest);
  cache.set(matrix, known);
  return shown;
}

/** The number of heads whose small pictures have arrived; renders again when there are more, once per frame.
 *  @param {Attention} attention */
export function useReady(attention) {
  const [, setCount] = useState(0);
  useEffect(() => {
    let request = 0;
    const render = () => {
      request ||= requestAnimationFrame(() => {
        request = 0;
        setCount((before) => before + 1);
      });
    };
    const end = attention.arrival?.listen(render);
    render();
    return () => {
      end?.();
      cancelAnimationFrame(request);
    };
  }, [attention]);
  return attention.ready;
}

/** The largest value of all heads that have arrived, if the settings need it. @param {Attention} attention @param {Settings} settings */
export function globalMax(attention, settings) {
  if (settings.range !== "global") return undefined;
  let top = 0;
  for (let i = 0; i < attention.ready; i++)
    for (const value of attention.small(Math.floor(i / attention.heads), i % attention.heads).values)
      if (Number.isFinite(value) && Math.abs(value) > top) top = Math.abs(value);
  return top || 1;
}

/** A value that has not changed for a moment. @template T @param {T} value @param {number} pause  ms @returns {T} */
export function useSettled(value, pause) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), pause);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
