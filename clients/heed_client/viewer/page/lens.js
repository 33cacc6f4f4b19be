// The lens of the text while the view Lens is open.
import { hasKey } from "heed/server/api.js";
import { hasLens, lensBody, lensOf, MOST, wordsRead } from "heed/server/lens.js";
import { ACTIONS, choicesOf, indexName, siteTitle } from "heed/data/patch.js";
import { pinnedIntervention, wordsAt } from "heed/server/sweep.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/server/lens.js").Lens} Lens */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{lens: Lens | null, error: Error | null, pinned: string | null}} LensState  `pinned` is a change that can be seen here */

/** The first token that is shown. @param {Settings} settings @param {number} count  of all */
export function firstOf({ lens: { from } }, count) {
  return Number.isSafeInteger(from) ? Math.max(0, Math.min(from, count - MOST)) : 0;
}

/** @param {import("heed/views/hooks.js").Answer | null} answer  to the text @param {Settings} settings
 *  @returns {{state: LensState, request: import("heed/save/commands.js").Request} | null}  null in other views */
export function useLens(answer, settings) {
  const isShown = settings.view === "lens" && answer !== null && hasLens(answer.model);
  const from = answer ? firstOf(settings, wordsRead(answer.input).length) : 0;
  const choices = isShown ? choicesOf(answer.model, settings) : null;
  const isChanged = choices !== null && choices.cell !== null && settings.lens.changed === true;
  const { value, error } = usePromise(async () => {
    if (!answer || !isShown) return null;
    const { model, input } = answer;
    const plain = lensBody(model, settings, input, from);
    const one = isChanged ? await pinnedIntervention(model, settings, input) : null;
    const body = one ? { ...plain, interventions: [one] } : plain;
    const [lens, before] = await Promise.all([
      lensOf(model, settings, input, body),
      one ? lensOf(model, settings, input, plain) : null,
    ]);
    const change = one && choices ? pinnedTitle(choices, input) : null;
    return { model, body, lens: { ...lens, change, before: before?.guesses ?? null } };
  }, [isShown, answer?.input, from, isChanged && JSON.stringify(settings.patch)]);
  if (!isShown || !choices) return null;
  const server = location.origin + location.pathname.replace(/\/$/, "");
  return {
    state: {
      lens: value?.model === answer.model ? value.lens : null,
      error,
      pinned: choices.cell && pinnedTitle(choices, answer.input),
    },
    request: {
      server,
      path: "lens",
      model: answer.model.block,
      output: "lens",
      texts: true,
      body: () => value?.body ?? lensBody(answer.model, settings, answer.input, from),
      needsKey: hasKey(),
    },
  };
}

/** The change that is pinned in the view Patch, in words.
 *  @param {import("heed/data/patch.js").Choices} choices @param {import("heed/server/run.js").Input} input */
function pinnedTitle({ at, action, over, cell }, input) {
  const places = over.split(",").map((axis, i) => {
    const index = cell?.[i] ?? 0;
    if (axis === "layers" || axis === "heads") return indexName(at, axis, index);
    return `“${wordsAt(input, at, /** @type {import("heed/data/patch.js").Axis} */ (axis))[index]?.text ?? index}”`;
  });
  return `${siteTitle(at)}, ${places.join(", ")}: ${ACTIONS[action]}`;
}
