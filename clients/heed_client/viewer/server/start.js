// What the page opens with: a sentence for a model that takes texts, else one whose tensors come with the page.
import { builtIn, modelOf } from "heed/server/run.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

export const SENTENCE = "The animal didn't cross the street because it was too tired.";

/**
 * @param {string[]} names  of the server's models
 * @returns {Promise<Partial<Settings>>}
 */
export async function start(names) {
  if (names.includes("scaled_dot_product")) {
    const { words } = await builtIn();
    return { model: "scaled_dot_product", sentence: true, view: "head", head: 1, query: words.indexOf("it") };
  }
  for (const model of names) if ((await modelOf(model)).tokenizer) return { model, text: SENTENCE };
  return { model: names[0] ?? "" };
}
