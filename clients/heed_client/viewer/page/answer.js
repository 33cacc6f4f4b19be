// The answer to the page's input: the model is run again when it changes.
import { useRef } from "vendor/preact.js";
import { runPart } from "heed/data/state.js";
import { inputOf, neededFor, run } from "heed/server/run.js";
import { isGenerated } from "heed/server/texts.js";
import { usePromise } from "heed/views/hooks.js";

/** @typedef {import("heed/data/attention.js").Attention} Attention */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {import("heed/server/run.js").Request} Request */

const PAUSE = 250; // ms without a change of the input before it is run

/**
 * Runs the model when its input has not changed for a moment; the last answer stays until the next arrives.
 * @param {import("heed/server/api.js").Model | null} model @param {Settings} settings @param {Request | null} request
 * @param {number} attempt  the same is run again when it changes
 */
export function useAnswer(model, settings, request, attempt) {
  const running = useRef(/** @type {AbortController | null} */ (null));
  const isFirst = useRef(true);
  const isOfDecoder = model !== null && isGenerated(model, settings);
  const asked = JSON.stringify([runPart(settings), isOfDecoder]);
  const answer = usePromise(
    async (begin) => {
      running.current?.abort();
      if (!model || neededFor(model, settings, request)) return null;
      const controller = (running.current = new AbortController());
      if (!isFirst.current) await new Promise((resolve) => setTimeout(resolve, PAUSE));
      isFirst.current = false;
      controller.signal.throwIfAborted();
      const input = await inputOf(model, settings, request);
      const own = isOfDecoder && input.decoderText ? { ...settings, target: input.decoderText } : settings;
      const answerOf = (/** @type {Attention} */ attention) => ({
        ...{ model, input, attention, settings: own, request, asked, isOfDecoder },
      });
      const attention = await run(model, settings, input, controller.signal, (first) => {
        performance.mark("heed-answered");
        begin(answerOf(first));
      });
      return answerOf(attention);
    },
    [model, asked, request, attempt],
  );
  const { value } = answer;
  const isCurrent = value !== null && value.model === model && value.request === request && value.asked === asked;
  const isFitting = value !== null && value.isOfDecoder === isOfDecoder; // else a view of it would ask of another decoder text
  return { ...answer, isCurrent, isFitting };
}
