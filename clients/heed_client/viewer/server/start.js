// What the page opens with: a sentence for a model that takes texts, else one whose tensors come with the page.
import { modelOf } from "heed/server/run.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

export const SENTENCE = "The animal didn't cross the street because it was too tired.";

/**
 * @param {string[]} names  of the server's models
 * @returns {Promise<{changes: Partial<Settings>, request: {fields: Record<string, unknown>, words: string[]} | null}>}
 */
export async function start(names) {
  if (names.includes("scaled_dot_product")) {
    const { words, ...fields } = await (await fetch(new URL("example.json", import.meta.url))).json();
    return {
      changes: { model: "scaled_dot_product", view: "head", head: 1, query: words.indexOf("it") },
      request: { fields, words },
    };
  }
  for (const model of names)
    if ((await modelOf(model)).tokenizer) return { changes: { model, text: SENTENCE }, request: null };
  return { changes: { model: names[0] ?? "" }, request: null };
}
