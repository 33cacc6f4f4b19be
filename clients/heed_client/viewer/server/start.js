// The model that the page opens with: a trained model with a tokenizer, else another with one, else a block and the
// sentence whose tensors come with the page.
import { isTrained } from "heed/server/api.js";
import { builtIn, modelOf } from "heed/server/run.js";

/** @typedef {import("heed/data/state.js").Settings} Settings */

/**
 * @param {import("heed/server/api.js").Line[]} models  of the server
 * @returns {Promise<Partial<Settings>>}
 */
export async function start(models) {
  const ordered = [...models.filter(isTrained), ...models.filter((model) => !isTrained(model))];
  const isText = await Promise.all(ordered.map(({ block }) => takesTexts(block)));
  const first = ordered.find((_, i) => isText[i]);
  if (first) return { model: first.block };
  if (models.some(({ block }) => block === "scaled_dot_product")) {
    const { words } = await builtIn();
    return { model: "scaled_dot_product", sentence: true, view: "head", head: 1, query: words.indexOf("it") };
  }
  return { model: models[0]?.block ?? "" };
}

/** @param {string} name  of a model, whose description may fail: then it is not opened */
const takesTexts = (name) =>
  modelOf(name).then(
    ({ tokenizer }) => tokenizer !== null,
    () => false,
  );
