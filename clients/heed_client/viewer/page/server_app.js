// The page of a server: a model and its input at the left, its attention at the right.
import { html, useCallback, useEffect, useRef, useState } from "vendor/preact.js";
import * as api from "heed/server/api.js";
import { toJson } from "heed/save/commands.js";
import { start } from "heed/server/start.js";
import { hasHeadMask, headMask, inputOf, modelOf, neededFor, run } from "heed/server/run.js";
import { patchesOf } from "heed/server/picture.js";
import { hasSteps } from "heed/server/steps.js";
import { DEFAULTS, fromFragment, toFragment } from "heed/data/state.js";
import { Header } from "heed/page/header.js";
import { usePromise } from "heed/views/hooks.js";
import { InputPanel } from "heed/page/input/panel.js";
import { AblateView } from "heed/views/ablate_view.js";
import { Choice } from "heed/views/controls.js";
import { PictureView } from "heed/views/picture_view.js";
import { StepsView } from "heed/views/steps_view.js";
import { VIEWS, Workspace } from "heed/page/workspace.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/run.js").Request} Request */

const PAUSE = 250; // ms without a change of the input before it is run

export function ServerApp() {
  const [settings, setSettings] = useState(() => fromFragment(location.hash));
  const [request, setRequest] = useState(/** @type {Request | null} */ (null));
  const [key, setKey] = useState(0); // counts the API keys that were entered
  const set = useCallback(
    (/** @type {Partial<Settings>} */ changes) => setSettings((before) => ({ ...before, ...changes })),
    [],
  );
  useEffect(() => history.replaceState(null, "", `#${toFragment(settings)}`), [settings]);

  useEffect(() => {
    // a link to another view of this page
    const change = () => setSettings(fromFragment(location.hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);

  const models = usePromise(api.models, [key]);
  useEffect(() => {
    if (!models.value || settings.model) return;
    start(models.value.map(({ block }) => block)).then(set);
  }, [models.value]);
  const model = usePromise(async () => (settings.model ? modelOf(settings.model) : null), [settings.model, key]);
  const current = model.value?.block === settings.model ? model.value : null;
  const answer = useAnswer(current, settings, request);
  const shown = answer.value?.model === current ? answer.value : null; // the last model's answer is no answer
  const needed = current ? neededFor(current, settings, request) : "";
  const second = useSecond(models.value ?? [], settings, set, request, shown?.attention ?? null);
  const error = models.error ?? model.error ?? answer.error;
  return html`<${Header} models=${models.value ?? []} settings=${settings} error=${error} onKey=${(
    /** @type {string} */ text,
  ) => {
    api.setKey(text);
    setKey(key + 1);
  }} onModel=${(/** @type {string} */ name) => {
    setRequest(null);
    const { palette, text, pair, target } = settings;
    set({ ...DEFAULTS, model: name, palette, text, pair, target });
  }} />
    <main>
      ${
        current &&
        html`<${InputPanel} model=${current} settings=${settings} set=${set} request=${request} setRequest=${setRequest}
        error=${answer.error} isBusy=${answer.isBusy} answer=${shown} />`
      }
      ${
        shown
          ? html`<${Workspace} attention=${shown.attention} settings=${settings} set=${set} title=${shown.model.block}
            request=${asRequest(shown, settings)} views=${viewsOf(shown.model)} extra=${{ second, run: { ...shown, setRequest } }} />`
          : html`<section class="workspace" aria-busy=${answer.isBusy && !needed}>
            <p class="note">${needed || (error ? `Nothing is drawn: ${error.message}` : "…")}</p></section>`
      }
    </main>`;
}

/** The views of a model: some need the server, and not every model has them. @param {import("heed/server/api.js").Model} model */
const viewsOf = (model) => ({
  ...(patchesOf(model) && { picture: { title: "Picture", view: PictureView } }),
  ...VIEWS,
  ...(hasHeadMask(model) && { ablate: { title: "Ablate", view: AblateView } }),
  ...(hasSteps(model) && { steps: { title: "Steps", view: StepsView } }),
});

/**
 * Runs the model when its input has not changed for a moment; the last answer stays until the next is there.
 * @param {import("heed/server/api.js").Model | null} model @param {Settings} settings @param {Request | null} request
 */
export function useAnswer(model, settings, request) {
  const running = useRef(/** @type {AbortController | null} */ (null));
  const isFirst = useRef(true);
  const { text, pair, target, sentence, random, words, parameters, ablated, kind, batch } = settings;
  return usePromise(async () => {
    running.current?.abort();
    if (!model || neededFor(model, settings, request)) return null;
    const controller = (running.current = new AbortController());
    if (!isFirst.current) await new Promise((resolve) => setTimeout(resolve, PAUSE));
    isFirst.current = false;
    controller.signal.throwIfAborted();
    const input = await inputOf(model, settings, request);
    const attention = await run(model, settings, input, controller.signal);
    performance.mark("heed-answered");
    return { model, input, attention, settings, request };
  }, [model, text, pair, target, kind, batch, request, JSON.stringify([sentence, random, words, parameters, ablated])]);
}

/**
 * The second side of a comparison: the settings in `other`, or another head of the same answer.
 * @param {{block: string, title: string}[]} models @param {Settings} settings @param {import("heed/views/hooks.js").Set} set
 * @param {Request | null} request @param {import("heed/data/attention.js").Attention | null} first
 */
function useSecond(models, settings, set, request, first) {
  const isShown = settings.view === "compare" && first !== null;
  const other = settings.other ?? { head: first ? (settings.head + 1) % first.heads : 0 };
  const merged = { ...settings, ...other };
  const [ownRequest, setOwnRequest] = useState(/** @type {Request | null} */ (null));
  const chosen = usePromise(async () => (isShown ? modelOf(merged.model) : null), [isShown, merged.model]);
  const current = chosen.value?.block === merged.model ? chosen.value : null;
  const isSame =
    ownRequest === null && RUN.every((name) => JSON.stringify(merged[name]) === JSON.stringify(settings[name]));
  const answer = useAnswer(
    isShown && !isSame ? current : null,
    merged,
    ownRequest ?? (merged.model === settings.model ? request : null),
  );
  const attention = isSame ? first : answer.value?.attention;
  const setOther = (/** @type {Partial<Settings>} */ changes) => set({ other: { ...other, ...changes } });
  if (!isShown || !current) return null;
  const panel = html`<details class="second-input"><summary>another text, model or option</summary>
    <${Choice} label="second model" value=${merged.model} options=${Object.fromEntries(models.map(({ block, title }) => [block, `${block}: ${title}`]))}
      onChange=${(/** @type {string} */ name) => {
        setOwnRequest(null);
        setOther({ model: name, sentence: false, parameters: {}, ablated: [], layer: 0, head: 0 });
      }} />
    <${InputPanel} model=${current} settings=${merged} set=${setOther} request=${ownRequest ?? request} setRequest=${setOwnRequest}
      error=${answer.error} isBusy=${answer.isBusy} answer=${answer.value?.model === current ? answer.value : null} isSecond=${true} /></details>`;
  return { attention: attention ?? first, settings: merged, set: setOther, panel };
}

/** Settings that change what is run. @type {(keyof Settings)[]} */
const RUN = [
  "model",
  "text",
  "pair",
  "target",
  "kind",
  "batch",
  "parameters",
  "sentence",
  "random",
  "words",
  "ablated",
];

/** The request of the page, for a command.
 *  @param {{model: import("heed/server/api.js").Model, input: import("heed/server/run.js").Input}} answer @param {Settings} settings
 *  @returns {import("heed/save/commands.js").Request} */
function asRequest({ model, input }, settings) {
  const { text, pair, target, parameters, kind } = settings;
  const texts = model.tokenizer !== null;
  const body = () => {
    const tensors = { ...(texts ? {} : input.tensors), ...headMask(model, settings, input) };
    const given = texts ? { text, ...(pair && { text_pair: pair }), ...(target && { text_target: target }) } : {};
    const fields = Object.entries(tensors).map(([name, tensor]) => [name, toJson(tensor)]);
    return { ...given, ...Object.fromEntries(fields), ...parameters, outputs: [kind] };
  };
  return { server: location.href.replace(/\/?(#.*)?$/, ""), model: model.block, texts, body, needsKey: api.hasKey() };
}
