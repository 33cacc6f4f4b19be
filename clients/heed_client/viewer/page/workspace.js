// The part of the page that every source of attention has: tabs, controls of the drawing, the view, the selection.
import { html, useEffect, useMemo, useRef, useState } from "vendor/preact.js";
import { edgeCut } from "heed/data/patch.js";
import { changedLooks, combinationsOf, Display, Shown } from "heed/page/legibility.js";
import { focusTab, hint } from "heed/views/controls.js";
import { useOpen } from "heed/views/hooks.js";
import { ModelView } from "heed/views/model_view.js";
import { HeadView } from "heed/views/head_view.js";
import { WholeMatrix } from "heed/views/matrix_view.js";
import { TokenView } from "heed/views/token_view.js";
import { CompareView } from "heed/views/compare_view.js";
import { GenerateView } from "heed/views/generate_view.js";
import { LensView } from "heed/views/lens_view.js";
import { PatchView } from "heed/views/patch_view.js";
import { PictureView } from "heed/views/picture_view.js";
import { placeOf } from "heed/views/comparison.js";
import { PairFinder, useRanking } from "heed/views/pair_finder.js";
import { Selection } from "heed/views/selection.js";
import { TakeAlong } from "heed/page/take_along.js";

/** @typedef {import("heed/views/hooks.js").ViewProps} ViewProps */
/** @typedef {import("heed/views/hooks.js").Set} Set */
/** @typedef {import("heed/data/state.js").Settings} Settings */

/** Of vision models. */
export const PICTURE = { picture: { title: "Picture", view: PictureView } };
/** Of models that generate, and of pages with a generated text. */
export const GENERATE = { generate: { title: "Generate", view: GenerateView } };
/** Of models whose activations can be changed, and of pages with a grid of patches. */
export const PATCH = { patch: { title: "Patch", view: PatchView } };
/** Of language models, and of pages with a lens. */
export const LENS = { lens: { title: "Lens", view: LensView } };
/** @type {Record<string, {title: string, view: (props: any) => unknown}>} */
export const VIEWS = {
  model: { title: "Model", view: ModelView },
  head: { title: "Head", view: HeadView },
  matrix: { title: "Matrix", view: WholeMatrix },
  tokens: { title: "Tokens", view: TokenView },
  compare: { title: "Compare", view: CompareView },
};

const POINTED = ["head", "matrix", "tokens", "picture"]; // views of one answer in which a token can be pointed at

/** What is written before a word is pinned, if it is not the same as elsewhere; Tokens says it above. @type {Record<string, string>} */
const HINTS = {
  head: hint("Point at a word; click, or press Enter, to pin it. Escape unpins it.", "Tap a word to pin it."),
  tokens: "",
};

const HEADED = ["head", "matrix", "tokens", "compare", "picture", "ablate", "neurons", "steps"]; // views that open with one head
const PAIRED = ["model", "head", "matrix"]; // views of one answer whose words are not buttons already

/** What the views need that not every model has. @type {Record<string, string>} */
const NEEDS = {
  picture: "a model that reads pictures",
  generate: "a model that generates text",
  ablate: "a model with a mask of heads",
  patch: "a model of texts whose activations can be changed",
  lens: "a model that predicts next tokens",
  neurons: "a model whose queries and keys can be read",
  steps: "a single attention block",
};

/** Views of other numbers than weights, and what they show. @type {Record<string, string>} */
const OWN = {
  patch: "A large change shows that the model uses what is there for this answer, in these texts.",
  lens: "Each layer is read with the model’s last norm and head, which were trained for the last layer alone.",
};

/** @param {import("heed/data/ranking.js").Ranked} ranked */
const placeOfHead = ({ layer, head }) => ({ layer, head });

/**
 * @param {ViewProps & {title: string, about: Record<string, string>, views?: typeof VIEWS,
 *   requestOf?: ((settings: Settings) => import("heed/save/commands.js").Request) | null, kinds?: string[], extra?: Record<string, any>, isOpening?: boolean}} props
 *   `isOpening`: no layer or head is chosen yet, `kinds` are the outputs that can be shown, `about` has the origin of the weights, `extra` is passed to the views
 */
export function Workspace({
  attention,
  settings,
  set,
  title,
  about,
  views = VIEWS,
  requestOf = null,
  kinds = [],
  extra = {},
  isOpening = false,
}) {
  const name = Object.hasOwn(views, settings.view)
    ? settings.view
    : /** @type {Settings["view"]} */ (Object.keys(views).find((first) => first !== "generate" || extra.generation));
  const isPinned = settings.query !== null || settings.key !== null;
  const isHeaded = isOpening && HEADED.includes(name) && (name !== "picture" || isPinned); // it pins a token at once
  const { heads: ranked } = useRanking(attention, { ...settings, view: name }, true, isHeaded);
  const [best, next] = ranked;
  useEffect(() => {
    const isCompared = name === "compare" && settings.other === null && next;
    if (best) set({ ...placeOfHead(best), ...(isCompared && { other: placeOfHead(next) }) });
  }, [best]);
  const within = useMemo(
    () => ({
      ...settings,
      view: name,
      layer: Math.min(best?.layer ?? settings.layer, attention.layers - 1),
      head: Math.min(best?.head ?? settings.head, attention.heads - 1),
      query: settings.query !== null && settings.query < attention.m ? settings.query : null,
      key: settings.key !== null && settings.key < attention.n ? settings.key : null,
      combine: Object.hasOwn(combinationsOf(attention, settings.kind), settings.combine) ? settings.combine : "none",
    }),
    [settings, attention, name, best],
  );
  const { layer, head } = within;
  const { view: View } = views[name];
  const [isOpen, setOpen] = useOpen("display");
  const [pointed, setPointed] = useState(/** @type {import("heed/views/pair_finder.js").Head | null} */ (null)); // in Model
  useEffect(() => setPointed({ layer, head }), [layer, head]);
  const open = (/** @type {Partial<Settings>} */ changes) =>
    set(name === "model" ? { ...pointed, ...changes } : changes); // with the head that is shown large
  const isWaiting = (name === "patch" && !extra.sweep) || (name === "lens" && !extra.lens); // for a text of the decoder
  const hasDisplay = !["steps", "neurons", "patch"].includes(name); // whose colours are not those of weights
  const changed = changedLooks(within);
  const cut = extra.run && POINTED.includes(name) ? edgeCut(extra.run.model, within) : null;
  return html`<section class="workspace" aria-label="attention">
    <div class="bar">
      <${Tabs} views=${views} selected=${name} set=${open} />
      ${
        hasDisplay &&
        html`<button aria-expanded=${isOpen} aria-controls="display" onClick=${() => setOpen(!isOpen)}>
        Display${changed > 0 && ` (${changed} changed)`}</button>`
      }
      <${TakeAlong} attention=${attention} settings=${within} set=${set} title=${title} about=${about} request=${requestOf && requestOf(within)} picture=${extra.picture}
        second=${extra.second} run=${extra.run} generation=${extra.generation} sweep=${extra.sweep} lens=${extra.lens} />
    </div>
    <div id="display" hidden=${!isOpen || !hasDisplay}>
      ${isOpen && hasDisplay && html`<${Display} attention=${attention} settings=${within} set=${set} picture=${extra.picture} />`}</div>
    ${
      settings.view &&
      settings.view !== name &&
      html`<p class="note" role="note">${title} has no view “${settings.view}”${Object.hasOwn(NEEDS, settings.view) && `, which needs ${NEEDS[settings.view]}`}. <button onClick=${() => {
        set({ view: name });
        focusTab();
      }}>close</button></p>`
    }
    ${
      settings.ablated.length > 0 &&
      name !== "ablate" &&
      html`<p class="note" role="note">${settings.ablated.length} of ${attention.layers * attention.heads} heads ${settings.ablated.length === 1 ? "is" : "are"} switched
        off.${extra.run && html` <button onClick=${() => set({ ablated: [] })}>switch all on</button>`}</p>`
    }
    ${PAIRED.includes(name) && html`<${PairFinder} attention=${attention} settings=${within} set=${set} point=${setPointed} pointed=${name === "model" && attention.isQuick ? pointed : null} />`}
    <${Shown} attention=${attention} settings=${within} set=${set} kinds=${OWN[name] ? [] : kinds} />
    ${["head", "matrix", "tokens", "picture", "generate"].includes(name) && html`<p class="on-paper">${placeOf(attention, within)}, ${within.scale} scale</p>`}
    <div id="view" role="tabpanel" aria-labelledby=${`tab-${name}`} class=${`view ${name}`}>
      ${isWaiting ? html`<p class="note">…</p>` : html`<${View} attention=${attention} settings=${within} set=${set} ...${extra} isOpening=${isOpening} ...${name === "model" ? { pointed, setPointed } : {}} />`}
    </div>
    ${POINTED.includes(name) && html`<${Selection} attention=${attention} settings=${within} set=${set} hint=${HINTS[name]} />`}
    <p class="note">${cut && html`<button onClick=${() => set(cut)}>cut this edge</button> Patch shows what the model answers without this weight, in each head. `}${OWN[name] ?? "Weights show where a model looks, not why it answers as it does."}</p>
  </section>`;
}

/** @param {{views: typeof VIEWS, selected: string, set: Set}} props */
function Tabs({ views, selected, set }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const names = Object.keys(views);
  useEffect(() => {
    const tab = list.current?.querySelector("[aria-selected=true]"); // in a narrow window some tabs are out of sight
    if (list.current && tab instanceof HTMLElement)
      list.current.scrollLeft =
        tab.offsetLeft - list.current.offsetLeft - (list.current.clientWidth - tab.offsetWidth) / 2;
  }, [selected]);
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(selected) + step + names.length) % names.length];
    set({ view: /** @type {Settings["view"]} */ (next) });
    list.current?.querySelector(/** @type {"button"} */ (`#tab-${next}`))?.focus();
    event.preventDefault();
  };
  return html`<div role="tablist" aria-label="views" ref=${list} onKeyDown=${move}>
    ${names.map(
      (name) => html`<button role="tab" id=${`tab-${name}`} aria-selected=${name === selected} aria-controls="view"
      tabindex=${name === selected ? 0 : -1} onClick=${() => set({ view: /** @type {Settings["view"]} */ (name) })}>${views[name].title}</button>`,
    )}
  </div>`;
}
