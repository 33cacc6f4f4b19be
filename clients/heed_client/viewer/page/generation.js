// The text that is generated while the view Generate is open; it starts again when its prompt or a parameter changes.
import { useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { hasKey } from "heed/server/api.js";
import {
  bodyOf,
  chosenTokens,
  generatedKinds,
  Generation,
  labelsOf,
  SOURCES,
  startOf,
} from "heed/server/generation.js";

/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/views/hooks.js").Set} Set */
/** @typedef {import("heed/server/generation.js").Token} Token */
/**
 * @typedef {object} Text  what the view shows, also in a saved page
 * @property {Label[] | null} source  words of the encoder; null = one stack
 * @property {Label[]} prompt  words that the decoder began with
 * @property {Token[]} tokens @property {Label[]} words  of these
 * @property {import("heed/server/generation.js").Status} status
 * @property {number} firstMs  until the first token @property {number} totalMs @property {number} fresh  tokens in that time
 */
/** @typedef {{error: Error | null, stop: () => void, again: () => void, choose: (place: number, next: import("heed/server/generation.js").NextToken) => void, fixed: (place: number, next?: import("heed/server/generation.js").NextToken) => string | null, ask: (place: number) => Promise<void>, whole: () => Promise<Text>}} Actions  on a server */

const PAUSE = 250; // ms without a change before it is generated
const CELLS_PER_MS = 20_000; // of the matrix, which is made again as tokens arrive

/** The settings of the page as those of the generated text: its tokens are the queries. @param {Settings} settings @returns {Settings} */
export function inText(settings) {
  const { token, seen, range } = settings;
  const direction = token === null && seen !== null ? "to" : "from";
  const own = {
    query: token,
    key: seen,
    direction: /** @type {"from" | "to"} */ (direction),
    ablated: [],
    parameters: {},
  };
  return { ...settings, ...own, range: range === "global" ? "matrix" : range };
}

/** Changes the page's settings in place of those of the text. @param {Set} set @returns {Set} */
export const setInText =
  (set) =>
  ({ query, key, direction: _, ...others }) =>
    set({ ...others, ...(query !== undefined && { token: query }), ...(key !== undefined && { seen: key }) });

/**
 * The state that Workspace shows in the view Generate; null in other views.
 * @param {import("heed/views/hooks.js").Answer | null} answer  to the prompt @param {Settings} settings @param {Set} set
 */
export function useGeneration(answer, settings, set) {
  const isShown = settings.view === "generate" && answer !== null && Boolean(answer.model.generate);
  const kinds = useMemo(() => (answer ? generatedKinds(answer.model) : []), [answer?.model]);
  const kind = kinds.includes(settings.kind) ? settings.kind : (kinds.at(-1) ?? "weights");
  const within = useMemo(() => ({ ...inText(settings), kind }), [settings, kind]);
  const start = useMemo(
    () => (isShown ? startOf(answer.model, settings, answer.input) : null),
    [isShown, answer?.input],
  );
  const prompt = start && JSON.stringify([answer?.model.block, answer?.model.version, start.fields, start.ids]);
  const { length, temperature, seed, topK, topP, stop, chosen } = settings;
  const asked =
    start && JSON.stringify([prompt, length, temperature, temperature ? [seed, topK, topP] : 0, stop, chosen]);
  const [attempt, setAttempt] = useState(0);
  const [state, setState] = useState({ generation: /** @type {Generation | null} */ (null), count: 0, status: "" });
  const live = useRef({
    prompt: /** @type {string | null} */ (null),
    done: "", // the last request
    branch: /** @type {ReturnType<Generation["branch"]> | null} */ (null), // whose tokens the settings have
    isChosen: false, // just now
    generation: /** @type {Generation | null} */ (null),
    settings: within,
  }).current;
  live.settings = within;
  useEffect(() => {
    if (prompt === null) return;
    const isOther = live.prompt !== null && live.prompt !== prompt;
    live.prompt = prompt;
    if (!isOther) return;
    live.branch = null;
    set({ chosen: [], token: null, seen: null }); // they are tokens of the last prompt
  }, [prompt]);
  useEffect(() => {
    const now = `${attempt} ${asked}`;
    if (!asked || live.done === now) return;
    const timer = setTimeout(begin, live.done && !live.isChosen ? PAUSE : 0);
    return () => clearTimeout(timer);

    function begin() {
      live.done = now;
      live.generation?.stop();
      live.isChosen = false;
      const isKnown = live.branch && JSON.stringify(pairsOf(live.branch.tokens)) === JSON.stringify(chosen);
      const { tokens, rows } = isKnown && live.branch ? live.branch : { tokens: chosenTokens(chosen), rows: undefined };
      const { model } = /** @type {import("heed/views/hooks.js").Answer} */ (answer);
      const generation = new Generation(model, /** @type {NonNullable<typeof start>} */ (start), tokens, rows);
      live.generation = generation;
      let [shownAt, waiting] = [0, 0];
      const show = () => {
        waiting = 0;
        shownAt = performance.now();
        if (live.generation === generation)
          setState({ generation, count: generation.tokens.length, status: generation.status });
      };
      show();
      generation.run(live.settings, () => {
        const { tokens, start } = generation;
        const pause = (tokens.length * (start.ids.length + tokens.length)) / CELLS_PER_MS;
        waiting ||= setTimeout(show, Math.max(0, shownAt + Math.max(16, pause) - performance.now()));
      });
    }
  }, [asked, attempt]);
  useEffect(() => () => live.generation?.stop(), [answer?.model]);

  const { generation, count } = state;
  const isOwn = generation !== null && generation.model === answer?.model;
  const attention = useMemo(
    () => (isOwn && count > 0 ? generation.attention(kind, count) : null),
    [generation, count, kind, isOwn],
  );
  const text = useMemo(() => (isOwn ? textOf(generation, count) : null), [state, isOwn]);
  if (!isShown || !start) return null;
  const actions = {
    error: isOwn ? generation.error : null,
    stop: () => generation?.stop(),
    again: () => setAttempt(attempt + 1),
    choose: (/** @type {number} */ place, /** @type {import("heed/server/generation.js").NextToken} */ next) => {
      live.branch = /** @type {Generation} */ (generation).branch(place, next);
      live.isChosen = true;
      set({ chosen: pairsOf(live.branch.tokens), token: place, seen: null });
    },
    fixed: (
      /** @type {number} */ place,
      /** @type {import("heed/server/generation.js").NextToken | undefined} */ next,
    ) => /** @type {Generation} */ (generation).fixed(place, next),
    ask: async (/** @type {number} */ place) => {
      await generation?.ask(place);
      setState((before) => (before.generation === generation ? { ...before } : before));
    },
    whole: async () => {
      const own = /** @type {Generation} */ (generation);
      await own.askAll(count);
      return textOf(own, count);
    },
  };
  const server = location.origin + location.pathname.replace(/\/$/, "");
  const body = () => bodyOf(answer.model, start, within);
  const isShort = !SOURCES.some((source) => source in start.fields); // else the body is a file of its own
  const request = {
    server,
    path: "generate",
    model: answer.model.block,
    output: kind,
    texts: isShort,
    body,
    needsKey: hasKey(),
  };
  const drawnFrom = `${topK ? `, top_k ${topK}` : ""}${topP < 1 ? `, top_p ${topP}` : ""}`;
  const how = temperature ? `temperature ${temperature}, seed ${seed}${drawnFrom}` : "always the most probable";
  const until = stop.length ? `, until ${stop.map((text) => JSON.stringify(text)).join(" or ")}` : "";
  const quantized = answer.model.generate?.quantized;
  const about = {
    generated: `${count} ${count === 1 ? "token" : "tokens"}, ${how}${until}${chosen.length ? `; token ${chosen.length} was chosen by hand` : ""}`,
    ...(quantized && {
      precision: `weights of ${quantized.bits} bits: attention up to ${quantized.errors.weights?.toPrecision(2)} from float64`,
    }),
  };
  return { attention, about, settings: within, set: setInText(set), kinds, request, generation: { text, actions } };
}

/** @param {Token[]} tokens @returns {Settings["chosen"]} */
const pairsOf = (tokens) => tokens.map(({ id, token }) => [id, token ?? ""]);

/** @param {Generation} generation @param {number} count @returns {Text} */
function textOf({ start, tokens, status, firstMs, totalMs, fresh }, count) {
  const shown = tokens.slice(0, count);
  const [source, prompt, words] = [start.sourceWords, start.words, labelsOf(shown, start.words.at(-1))];
  return { source, prompt, tokens: shown, words, status, firstMs, totalMs, fresh };
}
