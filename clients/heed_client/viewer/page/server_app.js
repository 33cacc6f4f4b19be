// The page of a server: a model and its input at the left, its attention at the right.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "vendor/preact.js";
import * as api from "heed/server/api.js";
import { toJson } from "heed/server/request.js";
import { start } from "heed/server/start.js";
import { hasHeadMask, headMask, kindsOf, modelOf, neededFor, openingKind, towerOf } from "heed/server/run.js";
import { DRAWING } from "heed/server/generation.js";
import { patchesOf, preprocessorOf, seenBy, TEST } from "heed/server/picture.js";
import { hasNeurons } from "heed/server/neurons.js";
import { hasSteps } from "heed/server/steps.js";
import { same, textsOf } from "heed/data/alignment.js";
import { openingToken } from "heed/data/tokens.js";
import {
  changed,
  changedOther,
  DEFAULTS,
  isSameRun,
  isWithoutHead,
  runPart,
  secondOf,
  SENTENCE,
  withHead,
} from "heed/data/state.js";
import { drawnHeads } from "heed/data/display.js";
import { useAddress } from "heed/page/address.js";
import { useAnswer } from "heed/page/answer.js";
import { Provenance } from "heed/page/provenance.js";
import { Header } from "heed/page/header.js";
import { useOpen, usePromise } from "heed/views/hooks.js";
import { useGeneration } from "heed/page/generation.js";
import { useLens } from "heed/page/lens.js";
import { useSweep } from "heed/page/sweep.js";
import { hasPatch } from "heed/data/patch.js";
import { hasLens } from "heed/server/lens.js";
import { rememberPicture } from "heed/page/input/drop.js";
import { InputPanel } from "heed/page/input/panel.js";
import { AblateView } from "heed/views/ablate_view.js";
import { Choice, modelChoices } from "heed/views/controls.js";
import { NeuronView } from "heed/views/neuron_view.js";
import { StepsView } from "heed/views/steps_view.js";
import { GENERATE, LENS, PATCH, PICTURE, VIEWS, Workspace } from "heed/page/workspace.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/run.js").Request} Request */
/** @typedef {import("heed/data/attention.js").Attention} Attention */

export function ServerApp() {
  const [chosen, setSettings, entry] = useAddress(DEFAULTS);
  const [request, setRequest] = useState(/** @type {Request | null} */ (null));
  const [attempt, setAttempt] = useState(0); // counts API keys that were entered, and "try again"
  const [isOpen, setOpen] = useOpen("input");
  const texts = useRef(/** @type {Partial<Settings>} */ ({})); // of the last model that took them
  const latest = useRef(""); // the model that was chosen last
  const set = useCallback(
    (/** @type {Partial<import("heed/data/state.js").Chosen>} */ changes) =>
      setSettings((before) => ({ ...before, ...changes })),
    [],
  );
  useEffect(() => setRequest(null), [chosen.model]); // another model has other tensors
  useEffect(() => rememberPicture(chosen.model, request), [chosen.model, request]);

  const models = usePromise(api.models, [attempt]);
  const opening = usePromise(async () => {
    if (!models.value || chosen.model) return;
    const first = await start(models.value);
    setSettings((before) => (before.model ? before : { ...DEFAULTS, ...first, ...changed(before) }));
  }, [models.value, chosen.model === "", attempt]);
  const model = usePromise(async () => (chosen.model ? modelOf(chosen.model) : null), [chosen.model, attempt]);
  const whole = model.value?.block === chosen.model ? model.value : null;
  const kind = chosen.kind || (whole ? openingKind(whole) : "weights");
  /** @type {Settings["view"]} */
  const view = chosen.view || (whole && writesAboutPicture(whole) ? "generate" : "");
  const settings = useMemo(() => ({ ...withHead(chosen), kind, view }), [chosen, kind, view]);
  const current = useMemo(() => whole && towerOf(whole, kind), [whole, kind]);
  const answer = useAnswer(current, settings, request, attempt);
  const shown = answer.value?.model === current ? answer.value : null; // not the answer of the previous model
  useEffect(() => {
    if (shown && isOpening(shown.model, settings)) set({ query: openingToken(shown.attention.rows) });
  }, [shown?.model]);
  usePins(shown?.model.tokenizer && answer.isCurrent ? shown.attention : null, settings, entry, set);
  // until the next answer arrives
  const drawn = useMemo(() => (shown ? { ...settings, ...runPart(shown.settings) } : settings), [shown, settings]);
  const picture = useMemo(() => shown && seenBy(shown.model, shown.input, drawn.batch), [shown, drawn.batch]);
  const server = usePromise(api.server, [attempt]);
  const source = useMemo(() => (shown ? aboutOf(shown, server.value) : {}), [shown, server.value]);
  const generated = useGeneration(shown, drawn, set);
  const fitting = answer.isFitting ? shown : null;
  const sweep = useSweep(fitting, drawn);
  const lens = useLens(fitting, drawn);
  const own = generated?.request ?? sweep?.request ?? lens?.request;
  const about = { ...source, ...generated?.about, ...sweep?.about };
  const undrawn = /** @type {any} */ (generated?.generation.actions.error);
  const needed = current ? neededFor(current, settings, request) : "";
  const second = useSecond(models.value ?? [], settings, set, request, shown, attempt, setAttempt);
  const error = models.error ?? opening.error ?? model.error ?? answer.error;
  const again = () => setAttempt(attempt + 1);
  useReconnect(error, () => setAttempt((before) => before + 1));
  return html`<${Header} models=${models.value ?? []} settings=${settings} error=${error ?? second?.error ?? null} onKey=${(
    /** @type {string} */ text,
  ) => {
    api.setKey(text);
    again();
  }} onModel=${async (/** @type {string} */ name) => {
    const { palette, text, pair, target } = settings;
    if (current?.tokenizer) texts.current = { text: text.trim() ? text : SENTENCE, pair, target };
    latest.current = name;
    const next = await modelOf(name).catch(() => null); // an error is said by the page, which asks for it as well
    if (latest.current !== name) return; // another model was chosen before this one was described
    const isPair = next?.inputs.some(({ name }) => name === "decoder_input_ids");
    set({ ...DEFAULTS, model: name, palette, ...(next?.tokenizer && texts.current), ...(!isPair && { target: "" }) });
  }} />
    <main class=${isOpen ? "open" : ""}>
      ${
        current &&
        html`<${InputPanel} model=${current} settings=${settings} set=${set} request=${request} setRequest=${setRequest} isOpen=${isOpen} setOpen=${setOpen}
        error=${answer.error ?? (DRAWING.includes(undrawn?.field) ? undrawn : null)} isBusy=${answer.isBusy} answer=${shown} />`
      }
      ${
        shown
          ? html`<div class=${error ? "answer stale" : "answer"} aria-busy=${(answer.isBusy || !answer.isCurrent) && !error}>
            ${error && html`<p class="bad">${!shown.attention.isWhole ? "Not all heads arrived" : "The last successful run is shown"}: ${messageOf(error)} <${Again} error=${error} onAgain=${again} /></p>`}
            <${Provenance} about=${about} />
            <${Workspace} attention=${generated?.attention ?? shown.attention} settings=${generated?.settings ?? drawn} set=${generated?.set ?? set}
            title=${shown.model.block} about=${about} isOpening=${isWithoutHead(chosen)} requestOf=${(/** @type {Settings} */ within) => own ?? asRequest(shown, within)} views=${viewsOf(shown.model, shown.input.patches ?? patchesOf(shown.model))}
            kinds=${generated?.kinds ?? kindsOf(shown.model)}
            extra=${{ second, picture, generation: generated?.generation, sweep: sweep?.state, lens: lens?.state, run: { ...shown, wanted: settings, setRequest: edit } }} /></div>`
          : html`<section class="workspace" aria-busy=${answer.isBusy && !needed}>
            <p class="note">${needed || (error ? html`Nothing to show: ${messageOf(error)} <${Again} error=${error} onAgain=${again} />${isUnknown(model.error) && html`<${Models} models=${models.value ?? []} />`}` : "…")}</p></section>`
      }
    </main>`;

  /** Tensors that a view changed. @param {(before: Request | null) => Request} change */
  function edit(change) {
    setRequest(change);
    set({ sentence: false });
  }
}

/** Whether the reader has not made any choice yet. @param {api.Model} model @param {Settings} settings */
const isOpening = ({ tokenizer }, { text, view, query, key }) =>
  tokenizer !== null && text === SENTENCE && view === "" && query === null && key === null;

/**
 * When a text gets other tokens, a pin follows its word, or is removed if the text no longer has the word. Pins of another
 * URL are already those of its run.
 * @param {Attention | null} attention  of these settings; null = no text, or not loaded yet @param {Settings} settings
 * @param {number} entry  counts the URLs @param {import("heed/views/hooks.js").Set} set
 */
function usePins(attention, { model, query, key, picture }, entry, set) {
  const last = useRef({ attention, model, query, key, picture, entry });
  useLayoutEffect(() => {
    if (!attention) return;
    const { current: before } = last;
    const isWaiting = before.attention === attention && before.picture !== picture; // for the run with it, or without
    last.current = { ...(isWaiting ? before : { picture, entry }), attention, model, query, key };
    if (before.attention === attention) return;
    const isKept =
      before.attention &&
      before.entry === entry &&
      before.model === model &&
      before.query === query &&
      before.key === key;
    const move = (/** @type {"rows" | "columns"} */ axis, /** @type {number | null} */ place) => {
      if (place === null) return null;
      const texts = textsOf(attention[axis]);
      const moved = isKept && before.attention ? same(textsOf(before.attention[axis]), texts)[place] : place;
      return moved >= 0 && moved < texts.length ? moved : null;
    };
    const pins = { query: move("rows", query), key: move("columns", key) };
    if (pins.query !== query || pins.key !== key) set(pins);
  }, [attention, model, query, key, picture, entry]);
}

/** The message of an error below the form for the key, which already has the server's message. @param {any} error @returns {string} */
const messageOf = ({ status, message }) => (status === 401 || status === 403 ? "an API key is needed" : message);

/** Whether the server has no model of this name. @param {any} error */
const isUnknown = (error) => error?.status === 404;

/** Links to the available models. @param {{models: api.Line[]}} props */
const Models = ({ models }) =>
  html`<br />Models of this server: ${models.map(
    ({ block }, i) => html`${i > 0 ? ", " : ""}<a href=${`#model=${encodeURIComponent(block)}`}>${block}</a>`,
  )}`;

const RECONNECT = 4000; // ms

/** Try again automatically when a server that did not answer is ready.
 *  @param {any} error @param {() => void} onReady */
function useReconnect(error, onReady) {
  useEffect(() => {
    if (error?.status !== 0) return;
    const timer = setInterval(() => api.isReady().then((isReady) => isReady && onReady()), RECONNECT);
    return () => clearInterval(timer);
  }, [error]);
}

/** A button to try again, if the same request may succeed. @param {{error: any, onAgain: () => void}} props */
const Again = ({ error: { field, status = 0 }, onAgain }) =>
  !field && (status < 400 || status >= 429) && html`<button onClick=${onAgain}>try again</button>`;

/** @param {import("heed/server/api.js").Model} model */
const writesAboutPicture = (model) =>
  Boolean(model.generate && preprocessorOf(model)) && openingKind(model) === "cross_weights";

/** The views of a model: some need the server, and not every model has them. @param {import("heed/server/api.js").Model} model
 *  @param {import("heed/views/picture_view.js").Patches | null} patches  of its picture */
const viewsOf = (model, patches) => ({
  ...(writesAboutPicture(model) && GENERATE),
  ...(patches && PICTURE),
  ...VIEWS,
  ...(model.generate && GENERATE),
  ...(hasHeadMask(model) && { ablate: { title: "Ablate", view: AblateView } }),
  ...(hasPatch(model) && PATCH),
  ...(hasLens(model) && LENS),
  ...(kindsOf(model).some((kind) => hasNeurons(model, kind)) && { neurons: { title: "Neurons", view: NeuronView } }),
  ...(hasSteps(model) && { steps: { title: "Steps", view: StepsView } }),
});

/**
 * The second side of a comparison: the settings in `other`, or another head of the same answer. Without an answer to
 * these settings it has no attention, and `reason` says why.
 * @param {api.Line[]} models @param {Settings} settings @param {import("heed/views/hooks.js").Set} set
 * @param {Request | null} request @param {import("heed/views/hooks.js").Answer | null} first
 * @param {number} attempt @param {(attempt: number) => void} setAttempt
 */
function useSecond(models, settings, set, request, first, attempt, setAttempt) {
  const isShown = settings.view === "compare" && first !== null;
  const [own, setOwn] = useState(/** @type {Request | null | undefined} */ (undefined)); // undefined = the first's
  const [isOpen, setOpen] = useState(false);
  const latest = useRef(""); // the model that was chosen last
  const name = settings.other?.model ?? settings.model;
  useEffect(() => setOwn(undefined), [settings.model, name]);
  const used = own !== undefined ? own : name === settings.model ? request : null;
  const merged = secondOf(settings, first?.attention.heads ?? 1, used === request);
  const chosen = usePromise(async () => (isShown ? modelOf(name) : null), [isShown, name, attempt]);
  const whole = chosen.value?.block === name ? chosen.value : null;
  const current = useMemo(() => whole && towerOf(whole, merged.kind), [whole, merged.kind]);
  const isSame = used === request && isSameRun(merged, settings);
  const answer = useAnswer(isShown && !isSame ? current : null, merged, used, attempt);
  if (!isShown) return null;
  const found = isSame ? first : answer.isCurrent ? answer.value : null;
  const attention = found?.attention ?? null;
  const error = isSame ? null : (chosen.error ?? answer.error);
  const needed = !isSame && current ? neededFor(current, merged, used) : "";
  const setOther = (/** @type {Partial<Settings>} */ changes) => set({ other: changedOther(settings, changes) });
  const choose = async (/** @type {string} */ name) => {
    const changes = { model: name, sentence: false, parameters: {}, ablated: [], layer: undefined, head: undefined };
    setOther(changes);
    latest.current = name;
    const model = await modelOf(name).catch(() => null); // an error is said by `reason`
    if (!model || latest.current !== name) return; // another model was chosen before this one was described
    const text = model.tokenizer && !merged.text.trim() ? SENTENCE : merged.text;
    const kinds = kindsOf(model);
    const kind = kinds.includes(merged.kind) ? merged.kind : (kinds[0] ?? merged.kind);
    if (text !== merged.text || kind !== merged.kind) setOther({ ...changes, text, kind });
  };
  const panel = html`<${Choice} label="second model" value=${name} options=${modelChoices(models)} onChange=${choose} />
    ${
      current &&
      html`<${InputPanel} model=${current} settings=${merged} set=${setOther} request=${used} setRequest=${setOwn}
      isOpen=${isOpen} setOpen=${setOpen} error=${answer.error} isBusy=${answer.isBusy && !isSame} answer=${found} isSecond=${true} />`
    }
    ${error && html`<${Again} error=${error} onAgain=${() => setAttempt(attempt + 1)} />`}`;
  const within = {
    ...merged,
    ...(found && runPart(found.settings)),
    ...(attention && {
      layer: Math.min(merged.layer, attention.layers - 1),
      head: Math.min(merged.head, attention.heads - 1),
    }),
  };
  return {
    attention,
    reason: error?.message ?? (needed || "…"),
    error,
    settings: within,
    set: setOther,
    request: found && asRequest(found, { ...within, view: settings.view }),
    isSame,
    panel,
  };
}

/**
 * The facts about the weights of an answer, by their names.
 * @param {import("heed/views/hooks.js").Answer} answer @param {{name: string, version: string} | null} server
 * @returns {Record<string, string>}
 */
function aboutOf({ model, input, settings, request }, server) {
  const { text, pair, target, random, sentence, parameters, ablated } = settings;
  const isText = model.tokenizer !== null;
  const tensors = Object.entries(input.tensors).map(([name, { shape }]) => `${name} ${shape.join(" × ")}`);
  const source = request ? "own" : random ? `random, seed ${random.seed}` : sentence ? "sentence" : "example";
  const isTest = !isText && source === "example" && preprocessorOf(model) !== null;
  const picture = request?.picture ?? (isTest ? TEST : "");
  const options = Object.entries(parameters).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  const said = {
    model: `${model.block}, version ${model.version}`,
    weights: model.weights === "none" ? "" : model.weights,
    text: isText ? text : "",
    picture,
    "second text": isText ? pair : "",
    "text of the decoder": isText && input.target.length ? target || text : "",
    input: isText
      ? `${input.source.length} tokens${input.truncated ? ", truncated" : ""}`
      : `${picture ? "" : `${source}: `}${tensors.join(", ")}`,
    options: options.join(", "),
    "heads switched off": ablated.map((place) => place.join(".")).join(", "),
    server: server ? `${server.name} ${server.version}` : "",
  };
  return Object.fromEntries(Object.entries(said).filter(([, value]) => value !== ""));
}

/** The options that select the shown layer and heads.
 *  @param {api.Model} model @param {Attention} attention @param {Settings} settings @returns {Record<string, string>} */
function selectionOf(model, attention, settings) {
  const { view, kind, layer, head, combine } = settings;
  if (view === "model" || combine === "rollout") return {};
  const isStack = model.outputs.find(({ name }) => name === kind)?.shape.length === 5;
  /** @type {Record<string, string>} */
  const ofLayer = isStack ? { layers: String(layer) } : {};
  if (attention.heads === 1) return ofLayer;
  if (combine.startsWith("layers")) return { heads: String(head), reduce_layers: combine.slice(7) };
  if (combine === "mean" || combine === "max") return { ...ofLayer, reduce_heads: combine };
  const heads = drawnHeads(attention, settings);
  return { ...ofLayer, heads: (heads.length ? heads : [head]).join(",") };
}

/** The request of the page, for a command.
 *  @param {import("heed/views/hooks.js").Answer} answer @param {Settings} settings
 *  @returns {import("heed/save/commands.js").Request} */
function asRequest({ model, input, attention }, settings) {
  const { text, pair, target, parameters, kind, combine } = settings;
  const texts = model.tokenizer !== null;
  const output = combine === "rollout" && settings.view !== "model" ? "rollout" : kind;
  const body = () => {
    const tensors = { ...(texts ? {} : input.tensors), ...headMask(model, settings, input) };
    const own = { text, ...(pair && { text_pair: pair }), ...(target && { text_target: target }) };
    const given = texts ? (input.texts ?? own) : {};
    const fields = Object.entries(tensors).map(([name, tensor]) => [name, toJson(tensor)]);
    return {
      ...given,
      ...Object.fromEntries(fields),
      ...parameters,
      outputs: [output],
      ...selectionOf(model, attention, settings),
    };
  };
  const server = location.origin + location.pathname.replace(/\/$/, "");
  const isShort = texts && !input.texts; // without a picture
  return {
    server,
    model: model.block,
    output,
    texts: isShort,
    ...(texts && { path: "text" }),
    body,
    needsKey: api.hasKey(),
  };
}
