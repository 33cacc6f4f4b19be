// The tensors of one head of a block, in the order in which they are computed.
import { infer } from "heed/server/api.js";
import { signedNote } from "heed/data/palettes.js";
import { headMask } from "heed/server/run.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/**
 * @typedef {object} Stage
 * @property {string} title @property {string} formula  in LaTeX
 * @property {string} sign  in LaTeX, between it and the stage before; empty: other inputs
 * @property {number} rows @property {number} columns @property {Float32Array} numbers  [rows * columns]
 * @property {boolean} isOfKeys  its rows are keys, not queries @property {boolean} isOfPairs  its columns are keys
 */

export const COLOURS = signedNote("within its tensor; for weights, full colour is 1");
const MOST = 250_000; // numbers of a tensor that is drawn

/** Whether a block projects its queries and keys, and returns the results. @param {Model} model */
export const isProjected = ({ outputs }) =>
  ["head_query", "present_key"].every((name) => outputs.some((output) => output.name === name));

/** The arrow to a tensor, with the operation above. @param {string} operation  in LaTeX */
const arrow = (operation) => `\\xrightarrow{${operation}}`;

/** The arrow to a product. @param {string} weights  and a bias, in LaTeX */
const times = (weights) => arrow(`{}\\times ${weights}`);

/** Whether the formula multiplies by the transpose of a drawn tensor. @param {Stage} stage */
export const isTransposed = ({ title, sign }) => title === "key" && sign === "\\times";

/** Whether a stage begins the line of the scores, below projected inputs. @param {Stage} stage */
export const beginsLine = ({ title, sign }) => title === "scores" && /^q/.test(sign);

const LOWEST = 0.25; // of a tensor's height, if the other has many more rows

/** The height of a tensor as a share of that of the highest one: all rows have one height. @param {Stage} stage @param {Stage[]} all */
export const heightOf = ({ rows }, all) => Math.max(LOWEST, rows / Math.max(...all.map((stage) => stage.rows)));

/** @typedef {[title: string, formula: string, sign: string]} Name */

/** The scores and weights by the formula of a block, and how its queries and keys are combined: their product, divided by a
 *  root or multiplied by the scale, or another function. @param {string} formula @param {[queries: string, keys: string]} letters */
function rowsOf(formula, [q, k]) {
  const isDivided = formula.includes("\\sqrt{d_k}");
  const isProduct = isDivided || formula.includes("s\\,QK^\\top");
  const product = `${q} ${k}^\\top`;
  const [scores, operation] = isDivided
    ? [`${product} / \\sqrt{d_k}`, "\\div \\sqrt{d_k}"]
    : isProduct
      ? [`s\\,${product}`, "{}\\times s"]
      : [`f(${q}, ${k})`, "f"];
  const [weights, last] = /softmax|\\exp/.test(formula)
    ? ["\\mathrm{softmax}(S)", "\\mathrm{softmax}"]
    : ["S / \\sum_j S", "\\div \\sum_j S"];
  return { isProduct, both: isProduct ? product : `${q}, ${k}`, scores, operation, weights, last };
}

/** Titles and formulas of the tensors, in the order of the computation. @param {Model} model @returns {Record<string, Name>} */
function namesOf(model) {
  const projected = isProjected(model);
  const isJoined = model.outputs.some(({ name }) => name === "head_output");
  const has = (/** @type {string} */ input) => model.inputs.some(({ name }) => name === input);
  const index = isJoined ? "_i" : "";
  const projection = (/** @type {string} */ letter) =>
    `W^${letter}${index}${has(`${letter.toLowerCase()}_proj_bias`) ? ` + b^${letter}${index}` : ""}`;
  const joining = `W^O${has("out_proj_bias") ? " + b^O" : ""}`;
  const rows = rowsOf(model.formula, projected ? ["q", "k"] : ["Q", "K"]);
  /** @type {Record<string, Name>} */
  const weights = {
    scores: ["scores", `S = ${rows.scores}`, (projected ? rows.both : "") + arrow(rows.operation)], // of the line above
    weights: ["weights", `A = ${rows.weights}`, arrow(rows.last)],
  };
  if (!projected)
    return {
      query: ["query", "Q", ""],
      key: ["key", "K", rows.isProduct ? "\\times" : ","],
      ...weights,
      value: ["value", "V", "\\times"],
      output: ["output", "O = A\\,V", "="],
    };
  const joined = /** @type {Name} */ (["output", `O = \\mathrm{Concat}(o_i)\\,${joining}`, times(joining)]);
  const sum = "{}\\times v =";
  return {
    query: ["query", "Q", ""],
    head_query: ["projected query", `q = Q ${projection("Q")}`, times(projection("Q"))],
    key: ["key", "K", ""],
    present_key: ["projected key", `k = K ${projection("K")}`, times(projection("K"))],
    value: ["value", "V", ""],
    present_value: ["projected value", `v = V ${projection("V")}`, times(projection("V"))],
    ...weights,
    ...(isJoined && { head_output: ["output of the head", "o = A\\,v", sum] }),
    output: isJoined ? joined : ["output", "O = A\\,v", sum],
  };
}

/**
 * All tensors of a head that the model takes or returns.
 * @param {Model} model @param {import("heed/data/state.js").Settings} settings @param {import("heed/server/run.js").Input} input
 * @returns {Promise<Stage[]>}
 */
export async function stagesOf(model, settings, { tensors, ...input }) {
  const names = namesOf(model);
  const own = Object.keys(names).filter((name) => model.outputs.some((output) => output.name === name));
  const outputs = own.filter((name) => tensors.value || !["output", "head_output", "present_value"].includes(name));
  const count = tensors.query.shape.at(-2) ?? 0;
  if (count * (tensors.key.shape.at(-2) ?? 0) > MOST) return [];
  const answer = await infer(
    model.block,
    { ...tensors, ...headMask(model, settings, { tensors, ...input }) },
    outputs,
    { ...settings.parameters, heads: String(settings.head) },
  );
  const heads = Number(model.outputs.find(({ name }) => name === "weights")?.shape[1]) || tensors.query.shape[1];
  return Object.entries(names).flatMap(([name, [title, formula, sign]]) => {
    const tensor = outputs.includes(name) ? answer[name] : tensors[name];
    if (!tensor) return [];
    const [rows, columns] = tensor.shape.slice(-2);
    const isOfKeys = /key|value/.test(name);
    const isOfPairs = name === "scores" || name === "weights";
    const numbers = headOf(tensor, settings.batch, settings.head, heads);
    return [{ title, formula, sign, rows, columns, numbers, isOfKeys, isOfPairs }];
  });
}

/** A head's rows of a tensor [batch, heads, rows, columns] or [batch, rows, columns]; several heads may share them.
 *  @param {Tensor} tensor @param {number} batch @param {number} head @param {number} heads */
function headOf({ shape, data }, batch, head, heads) {
  const size = Number(shape.at(-1)) * Number(shape.at(-2));
  const groups = shape.length === 4 ? shape[1] : 1;
  const row = Math.min(batch, shape[0] - 1);
  const start = (row * groups + Math.floor((head * groups) / heads)) * size;
  return /** @type {Float32Array} */ (data).subarray(start, start + size);
}
