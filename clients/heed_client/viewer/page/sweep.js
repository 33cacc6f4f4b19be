// The sweep that is measured while the view Patch is open; it starts again when a text or a choice changes.
import { useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { hasKey, ServerError } from "heed/server/api.js";
import { distance, outputOf } from "heed/server/ablation.js";
import { choicesOf, hasPatch, predictsTokens, shownIn, TOKENS } from "heed/data/patch.js";
import {
  cellIntervention,
  changedOutput,
  emptyGrid,
  generatedAlike,
  hasSameTokens,
  idsAt,
  likeliest,
  likelyTokens,
  otherInput,
  pairsOf,
  Sweep,
  sweepBody,
  tokenText,
  wordsAt,
} from "heed/server/sweep.js";
import { tokenName } from "heed/data/tokens.js";
import { usePromise, useSettled } from "heed/views/hooks.js";

/** @typedef {import("heed/data/patch.js").Choices} Choices */
/** @typedef {import("heed/data/patch.js").Grid} Grid */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/generation.js").NextToken} NextToken */
/** @typedef {{own: string, other: string | null, isSame: boolean}} Aligned  a token of the text and the one that replaces it */
/**
 * @typedef {object} CellRun  the effects of one cell's change
 * @property {[number, number]} cell @property {boolean} [isStale]  of the sweep before
 * @property {{title: string, before: NextToken[], after: NextToken[]} | null} tokens
 * @property {{word: string, cosine: number, share: number}[] | null} outputs  of each token, if the model predicts no next tokens
 */
/**
 * @typedef {object} SweepState  the content of the view; a saved page has no actions
 * @property {Grid | null} grid @property {Aligned[]} aligned @property {CellRun | null} cell
 * @property {Actions | null} actions
 */
/**
 * @typedef {object} Actions  on a server
 * @property {import("heed/server/api.js").Model} model @property {Choices} choices
 * @property {import("heed/server/run.js").Input} input
 * @property {string[]} defaults  default tokens of the metric
 * @property {Record<string, string>} known  suggested tokens, as they are written and as they are listed
 * @property {string} needed  a sentence about the missing input @property {number} cells  of the grid
 * @property {Error | null} error @property {boolean} isWaiting  for a click, because the grid is large
 * @property {boolean} hasLast  whether the last place is measured by default @property {boolean} isCurrent  whether the grid is of these choices @property {() => void} stop @property {() => void} again
 */

const PAUSE = 250; // ms without a change before it is measured
const SUGGESTED = 8; // tokens of each text
const AT_ONCE = 2000; // largest number of cells that are measured without a click
const MOST_NUMBERS = 250_000; // of outputs that are compared

/**
 * The state that Workspace shows in the view Patch; null in other views.
 * @param {import("heed/views/hooks.js").Answer | null} answer  to the text @param {Settings} settings
 * @returns {{state: SweepState, request: import("heed/save/commands.js").Request | null, about: Record<string, string>} | null}
 */
export function useSweep(answer, settings) {
  const isShown = settings.view === "patch" && answer !== null && hasPatch(answer.model);
  const chosen = useMemo(
    () => (isShown ? choicesOf(answer.model, settings) : null),
    [isShown, answer?.input, settings.patch, settings.text],
  );
  const wanted = chosen && ["from", "add"].includes(chosen.action) ? chosen.source : "";
  const source = useSettled(wanted, PAUSE);
  const other = usePromise(
    async () =>
      answer && chosen?.action === "from" && source.trim()
        ? { of: answer.input, source, input: await otherInput(answer.model, settings, answer.input, source) }
        : null,
    [chosen?.action, answer?.input, source],
  );
  const found = other.value?.of === answer?.input && other.value?.source === wanted ? other.value.input : null;
  const isUseless = // a text of the page's, which has the same tokens
    answer && found && !settings.patch.source && !settings.patch.action && hasSameTokens(answer.input, found);
  const action = isUseless ? /** @type {const} */ ("scale") : chosen?.action;
  const isFrom = action === "from";
  const place = useDefaultPlace(isShown ? answer : null, isFrom && found ? source : "");
  const choices = useMemo(
    () => (chosen && action ? { ...chosen, action, position: chosen.position ?? place ?? null } : null),
    [chosen, action, place],
  );
  const theirs = isFrom ? found : null;
  const hasTokens = isShown && predictsTokens(answer.model);
  const likely = usePromise(
    async () =>
      answer && hasTokens
        ? {
            of: answer.input,
            source,
            ...(await likeliest(answer.model, settings, answer.input, source, choices?.position ?? null)),
          }
        : null,
    [hasTokens, answer?.input, source, choices?.position],
  );
  const next = likely.value?.of === answer?.input && likely.value?.source === wanted ? likely.value : null;
  const defaults = useMemo(() => (choices && next ? defaultTokens(next.own, next.other) : []), [next]);
  const tokens = choices?.tokens.map((token, i) => token || defaults[i] || "") ?? [];
  const count = choices ? (TOKENS[choices.metric] ?? 0) : 0;
  const aligned = useMemo(
    () => (answer && choices && theirs ? alignedWords(answer.input, theirs, choices.at) : []),
    [answer?.input, choices?.at, theirs],
  );
  const needed =
    choices && (isFrom || choices.action === "add") && !wanted.trim()
      ? "Type another text, whose activations are taken."
      : answer && theirs && hasSameTokens(answer.input, theirs)
        ? sameness(aligned)
        : (hasTokens && !next) || tokens.slice(0, count).every(Boolean)
          ? ""
          : "Write the tokens that are compared.";
  const isReady =
    isShown &&
    !needed &&
    place !== undefined &&
    (!isFrom || theirs !== null) &&
    (!count || tokens.slice(0, count).every(Boolean));
  const asked = useMemo(
    () => (isReady && choices ? sweepBody(answer.model, settings, answer.input, { ...choices, tokens }, theirs) : null),
    [isReady, answer?.input, choices, tokens.join("\n"), theirs],
  );
  const key = asked && JSON.stringify([answer?.model.block, answer?.model.version, choices?.over, asked]);

  const [attempt, setAttempt] = useState(0);
  const [state, setState] = useState({ sweep: /** @type {Sweep | null} */ (null), rows: 0, key: "" });
  const live = useRef({ done: "", sweep: /** @type {Sweep | null} */ (null) }).current;
  const blank = answer && choices ? emptyGrid(answer.model, settings, answer.input, choices) : null;
  const cells = asked && blank ? cellsOf(blank, asked) : 0;
  const isWaiting = key !== null && live.done !== key && cells > AT_ONCE && attempt === 0;
  useEffect(() => setAttempt(0), [key]);
  useEffect(() => {
    if (!key || !asked || !blank || isWaiting || (live.done === key && attempt === 0)) return;
    const timer = setTimeout(
      () => {
        live.done = key;
        live.sweep?.stop();
        const sweep = new Sweep(/** @type {import("heed/views/hooks.js").Answer} */ (answer).model, asked, blank);
        live.sweep = sweep;
        let waiting = 0;
        const show = () => {
          waiting = 0;
          const hasBegun = sweep.grid.values.length > 0 || sweep.grid.status !== "running"; // until then the last one stays
          if (live.sweep === sweep && hasBegun) setState({ sweep, rows: sweep.rows, key });
        };
        sweep.run(() => (waiting ||= requestAnimationFrame(show)));
      },
      live.done ? PAUSE : 0,
    );
    return () => clearTimeout(timer);
  }, [key, attempt, isWaiting]);
  useEffect(() => () => live.sweep?.stop(), [answer?.model]);

  const { sweep } = state;
  const isOwn = sweep !== null && sweep.model === answer?.model && sweep.grid.values.length > 0;
  const grid = useMemo(
    () => (isOwn ? { ...sweep.grid, choices: { ...sweep.grid.choices, cell: choices?.cell ?? null } } : null),
    [state, isOwn, choices?.cell],
  );
  const cell = useCell(answer, settings, sweep, grid);
  if (!isShown || !choices) return null;
  const isCurrent = state.key === key;
  const suggested = [next?.other, next?.own].flatMap((tokens) => tokens?.slice(0, SUGGESTED) ?? []);
  const known = Object.fromEntries(suggested.map((one) => [tokenText(one), tokenName(one.token, one.id)]));
  /** @type {Actions} */
  const actions = {
    model: answer.model,
    choices,
    input: answer.input,
    defaults,
    known,
    needed,
    cells,
    error: (isCurrent ? sweep?.error : null) ?? ofOther(other.error),
    isWaiting,
    isCurrent,
    hasLast: place === null,
    stop: () => sweep?.stop(),
    again: () => setAttempt(attempt + 1),
  };
  const server = location.origin + location.pathname.replace(/\/$/, "");
  return {
    state: { grid, aligned, cell: cell && { ...cell.run, isStale: cell.sweep !== sweep }, actions },
    about: /** @type {Record<string, string>} */ (wanted ? { "other text": wanted } : {}),
    request: asked && {
      server,
      path: "sweep",
      model: answer.model.block,
      output: "values",
      texts: true,
      body: () => asked,
      needsKey: hasKey(),
    },
  };
}

/** The place whose next token is measured unless another is chosen: a mask token, or in a text that the decoder has generated
 *  the last that it generates from the other text, too; null = the last one, undefined = it is not known yet.
 *  @param {import("heed/views/hooks.js").Answer | null} answer @param {string} source  the other text; "" = there is none
 *  @returns {number | null | undefined} */
function useDefaultPlace(answer, source) {
  const isOfDecoder = answer?.isOfDecoder === true;
  const { value } = usePromise(
    async () =>
      isOfDecoder
        ? { answer, source, alike: source ? await generatedAlike(answer.model, answer.input, source) : 0 }
        : null,
    [isOfDecoder && answer, source],
  );
  if (!answer || !isOfDecoder) return answer && maskIn(answer);
  if (value?.answer !== answer || value.source !== source) return undefined;
  return Math.min(value.alike, answer.input.target.length - 1);
}

/** An error of the other text, beside the field of that text. @param {Error | null} error */
const ofOther = (error) => error && new ServerError(0, error.message, "intervention.from");

/** The number of cells to measure. @param {Grid} grid @param {import("heed/server/sweep.js").Body} body */
const cellsOf = ({ axes, labels }, { over }) =>
  axes.reduce((all, axis, i) => all * (Array.isArray(over[axis]) ? over[axis].length : labels[i].length), 1);

/** The default tokens of a metric: the likeliest token of the other text, and that of the text.
 *  @param {NextToken[]} own @param {NextToken[]} other */
function defaultTokens(own, other) {
  if (!own.length) return [];
  const first = (other.length ? other : own).find(({ id }) => id !== own[0].id) ?? own[0];
  return [first, own[0]].map(tokenText);
}

/** The place of the mask token, which a masked model predicts; null = there is none. @param {import("heed/views/hooks.js").Answer} answer */
function maskIn({ model, input }) {
  const place = model.tokenizer?.next_tokens
    ? -1
    : input.source.findIndex(({ text }) => /^(\[MASK\]|<mask>)$/.test(text));
  return place >= 0 ? place : null;
}

/** Each token of the text, with the token that replaces it.
 *  @param {import("heed/server/run.js").Input} input @param {import("heed/server/run.js").Input} theirs @param {string} at  site
 *  @returns {Aligned[]} */
function alignedWords(input, theirs, at) {
  const [own, other] = [wordsAt(input, at), wordsAt(theirs, at)];
  const [ownIds, otherIds] = [idsAt(input, at), idsAt(theirs, at)];
  const places = new Map(pairsOf(own, other).map((pair) => [pair.own, pair.other]));
  return own.map(({ text }, i) => {
    const place = places.get(i);
    if (place === undefined) return { own: text, other: null, isSame: false };
    return { own: text, other: other[place].text, isSame: ownIds[i] === otherIds[place] };
  });
}

/** That both texts have the same tokens, with two words of one token if there are any. @param {Aligned[]} aligned */
function sameness(aligned) {
  const words = aligned.find(({ own, other }) => own !== other);
  const why = words ? `“${words.own}” and “${words.other}” are one to the model` : "write another text";
  return `Both texts have the same tokens: ${why}.`;
}

/** The run with the change of the pinned or the strongest cell alone.
 *  @param {import("heed/views/hooks.js").Answer | null} answer @param {Settings} settings @param {Sweep | null} sweep @param {Grid | null} grid */
function useCell(answer, settings, sweep, grid) {
  const place = useMemo(() => {
    const cell = grid && shownIn(grid);
    return cell && /** @type {[number, number]} */ ([grid.indices[0][cell.row], grid.indices[1][cell.column]]);
  }, [grid]);
  const { value } = usePromise(async () => {
    if (!answer || !sweep || !grid || !place) return null;
    const { model, input } = answer;
    const { intervention: _, over: __, metric: ___, position = null, ...texts } = sweep.body;
    const one = cellIntervention(sweep.body, grid.axes, place);
    const words = input.target.length ? input.target : input.source;
    if (predictsTokens(model)) {
      const [before, after] = await Promise.all([
        likelyTokens(model, texts, [], position),
        likelyTokens(model, texts, [one], position),
      ]);
      const behind = model.tokenizer?.next_tokens ? "Next token" : "Token";
      const title =
        position === null
          ? behind
          : `${behind} ${model.tokenizer?.next_tokens ? "after" : "at"} “${words[position]?.text}”`;
      return { sweep, run: /** @type {CellRun} */ ({ cell: place, tokens: { title, before, after }, outputs: null }) };
    }
    const before = await outputOf(model, settings, input);
    const numbers = before ? before.rows.length * (before.rows[0]?.length ?? 0) : Infinity;
    if (!before || numbers > MOST_NUMBERS || before.rows.length !== words.length) return null;
    const rows = await changedOutput(model, texts, [one]);
    const outputs = before.rows.map((row, i) => ({
      word: words[i].text,
      ...distance(row, Float32Array.from(rows[i])),
    }));
    return { sweep, run: /** @type {CellRun} */ ({ cell: place, tokens: null, outputs }) };
  }, [sweep, String(place)]);
  return value && String(value.run.cell) === String(place) ? value : null;
}
