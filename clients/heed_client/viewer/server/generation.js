// Tokens after a prompt, and the weights of each: the stream of POST v1/generate/{model}, and runs of the model for weights
// that were not requested with the stream.
import { events, infer, post, ServerError, tensor } from "heed/server/api.js";
import { Attention, plainLabels } from "heed/data/attention.js";
import { toMatrix } from "heed/data/matrix.js";
import { fromRows, toRows } from "heed/data/rows.js";
import { beginsWord, isMarked, wordsOf } from "heed/data/tokens.js";
import { EXACT, kindsOf, rowOfBatch, unitOf } from "heed/server/run.js";
import { pictureOf, placeholderOf } from "heed/server/texts.js";

/** @typedef {import("heed/server/api.js").Model} Model */
/** @typedef {import("heed/server/api.js").Tensor} Tensor */
/** @typedef {import("heed/data/attention.js").Label} Label */
/** @typedef {import("heed/data/matrix.js").Matrix} Matrix */
/** @typedef {import("heed/data/state.js").Settings} Settings */
/** @typedef {{id: number, token: string | null, probability: number}} NextToken */
/**
 * @typedef {object} Token  that was generated, or chosen
 * @property {number} id @property {string | null} token @property {string} text  that it adds
 * @property {number | null} probability  before temperature; null = unknown
 * @property {NextToken[]} alternatives  the most probable tokens at its place; empty = unknown
 * @property {boolean} isChosen  by the reader
 */
/**
 * @typedef {object} Start  the prompt of a generation
 * @property {number[]} ids  that the decoder begins with @property {Label[]} words  of these
 * @property {Record<string, Tensor>} source  inputs of the encoder; empty for a model with one stack
 * @property {Label[] | null} sourceWords  null = one stack
 * @property {Label[]} patches  of a picture in place of words; empty = it has none, or they are unknown
 * @property {Record<string, unknown>} fields  of a request with the same prompt
 */
/** @typedef {"running" | "length" | "eos" | "stop" | "stopped" | "failed"} Status */

const LISTED = 8; // alternatives
/** Inputs of an encoder in place of token ids. */
export const SOURCES = ["input_features", "input_values", "pixel_values"];
/** Fields of a request that are among the options of the page. */
export const DRAWING = ["top_k", "top_p", "stop"];

/** Outputs of a step that are attention. @param {Model} model */
export const generatedKinds = (model) => kindsOf(model).filter((kind) => /^(cross_)?weights$/.test(kind));

/** @param {Model} model @param {Settings} settings @param {import("heed/server/run.js").Input} input @returns {Start} */
export function startOf(model, settings, input) {
  const { tensors, source, target: targetWords, texts } = input;
  const { text, pair, target, batch, words: own } = settings;
  const hasTwo = "decoder_input_ids" in tensors;
  const idsOf = (/** @type {string} */ name) => Array.from(rowOfBatch(tensors[name], batch, 0), Number);
  const mask = tensors.attention_mask && idsOf("attention_mask");
  const isToken = (/** @type {unknown} */ _, /** @type {number} */ place) => !mask || mask[place] !== 0;
  const given = texts ?? (model.tokenizer && { text, ...(pair && { text_pair: pair }) });
  const main = "input_ids" in tensors ? idsOf("input_ids").filter(isToken) : null;
  const words = (/** @type {Label[]} */ known, /** @type {number} */ count) =>
    Array.from({ length: count }, (_, i) => known[i] ?? { text: String(i), special: false, padding: false, part: 0 });
  if (!hasTwo) {
    const ids = main ?? [];
    const places = words(source.filter(isToken), ids.length);
    const hasWords = model.tokenizer !== null || own.length > 0;
    const labels = hasWords ? places : plainLabels(ids.map((id) => `#${id}`)); // like those after them
    const pictures = /** @type {Record<string, Tensor>} */ (pictureOf(model, input)?.fields ?? {});
    const fields = given || { input_ids: ids };
    return { ids, words: labels, source: pictures, sourceWords: null, patches: [], fields };
  }
  const begins = idsOf("decoder_input_ids");
  const isDefault = model.tokenizer !== null && !target; // the tokens after the first are those of the other views
  const ids = isDefault ? begins.slice(0, 1) : begins;
  const named = ids.map((id) => (id === model.start?.id ? model.start.token : `#${id}`));
  const name = main ? "input_ids" : String(SOURCES.find((one) => one in tensors));
  const [, ...shape] = main ? [1, main.length] : tensors[name].shape;
  const data = main ?? Array.from(/** @type {Float32Array} */ (rowOfBatch(tensors[name], batch, 0)));
  return {
    ids,
    words: words(targetWords.length ? targetWords : plainLabels(named), ids.length).map((label, i) =>
      i ? label : { ...label, special: true },
    ),
    source: { [name]: tensor(main ? "int64" : "float32", [1, ...shape], data) },
    sourceWords: main ? words(source.filter(isToken), main.length) : [],
    patches: main ? [] : source,
    fields: { ...(given || { [name]: main ?? { shape, data } }), ...(!isDefault && { decoder_input_ids: ids }) },
  };
}

/** The options that select one head, or heads or layers combined. @param {Settings} settings */
export function selectionOf({ combine, layer, head }) {
  if (combine.startsWith("layers")) return { heads: String(head), reduce_layers: combine.slice(7) };
  const layers = String(layer);
  return combine === "none" ? { layers, heads: String(head) } : { layers, reduce_heads: combine };
}

/** The body of a request for the shown outputs. @param {Model} model @param {Start} start @param {Settings} settings */
export const bodyOf = (model, start, settings) => ({
  ...textBody(start, settings),
  next_tokens: listed(model),
  outputs: [settings.kind],
  ...selectionOf(settings),
});

/** The body of a request for the text alone. @param {Start} start @param {Settings} settings */
function textBody(start, { length, temperature, seed, topK, topP, stop, chosen }) {
  return {
    ...promptOf(start, chosen),
    ...(length !== DEFAULT_LENGTH && { max_new_tokens: length }),
    ...(temperature !== 0 && { temperature, seed, ...(topK && { top_k: topK }), ...(topP < 1 && { top_p: topP }) }),
    ...(stop.length && { stop }),
  };
}

/** The prompt, and tokens that follow it. @param {Start} start @param {Settings["chosen"]} chosen */
function promptOf({ ids, fields, sourceWords }, chosen) {
  if (!chosen.length) return fields;
  const all = [...ids, ...chosen.map(([id]) => id)];
  const { pixel_values } = fields;
  return sourceWords
    ? { ...fields, decoder_input_ids: all }
    : { input_ids: all, ...(pixel_values ? { pixel_values } : {}) };
}

/** @param {Model} model */
const listed = (model) => Math.min(LISTED, Number(model.config.vocab_size) || LISTED);

const DEFAULT_LENGTH = 20; // of the server, which generates fewer if the model has fewer positions left

/** One text during its generation. Weights that are not in the stream are requested after its end. */
export class Generation {
  /** @param {Model} model @param {Start} start @param {Token[]} tokens  that it begins with
   *  @param {Map<string, Float32Array[]>} rows  their weights, as far as they are known */
  constructor(model, start, tokens = [], rows = new Map()) {
    this.model = model;
    this.start = start;
    this._placeholder = placeholderOf(model)?.token;
    this._isRefused = this._isUnsendable(tokens); // they are in a link
    this.tokens = this._isRefused ? [] : [...tokens];
    /** @type {Status} */
    this.status = "running";
    this.error = /** @type {ServerError | Error | null} */ (null);
    this.firstMs = 0;
    this.totalMs = 0;
    this.fresh = 0; // tokens of the stream
    /** For each selection, the weights of each token, by its place. */
    this._rows = new Map([...rows].map(([key, list]) => [key, list.slice(0, tokens.length)]));
    this._controller = new AbortController();
    this._ended = /** @type {PromiseWithResolvers<void>} */ (Promise.withResolvers());
    this._again = /** @type {Map<string, Promise<Float32Array[]>>} */ (new Map());
    this._settings = /** @type {Settings | null} */ (null); // of the stream
  }

  /** Whether a placeholder of a picture is among tokens, so that they cannot be sent as a prompt. @param {Pick<Token, "token">[]} tokens */
  _isUnsendable(tokens) {
    return tokens.some(({ token }) => token !== null && token === this._placeholder);
  }

  /** The reason why the text cannot continue from a token at a place; null = it can. @param {number} place @param {NextToken} [next] */
  fixed(place, next) {
    return this._isUnsendable([...this.tokens.slice(0, place), ...(next ? [next] : [])]) ? this._reason : null;
  }

  get _reason() {
    return `No text continues from a generated ${this._placeholder}, the placeholder of a picture.`;
  }

  /** The tokens before a place, and another token there, from which to continue.
   *  @param {number} place @param {NextToken} next */
  branch(place, { id, token, probability }) {
    const { alternatives } = this.tokens[place];
    const other = { id, token, text: "", probability, alternatives, isChosen: true };
    // The weights of a token do not depend on the token that was chosen after it.
    return { tokens: [...this.tokens.slice(0, place), other], rows: this._rows };
  }

  /** Generate until the end. @param {Settings} settings @param {() => void} onToken  is called after each token, and at the end */
  async run(settings, onToken) {
    const begin = performance.now();
    const path = `v1/generate/${encodeURIComponent(this.model.block)}`;
    const body = { ...bodyOf(this.model, this.start, settings), stream: true };
    this._settings = settings;
    try {
      if (this._isRefused) throw new Error(this._reason);
      for await (const { name, data } of events(path, body, this._controller.signal)) {
        if (name === "error") throw new ServerError(data.status, data.detail, data.field ?? null);
        if (name === "done") {
          this.status = data.finish_reason;
          [this.firstMs, this.totalMs] = [data.first_token_ms, data.total_ms];
          break;
        }
        this._add(data, settings);
        this.totalMs = performance.now() - begin;
        this.firstMs ||= this.totalMs;
        onToken();
      }
    } catch (error) {
      const isStopped = /** @type {Error} */ (error).name === "AbortError";
      this.status = isStopped ? "stopped" : "failed";
      if (!isStopped) this.error = /** @type {Error} */ (error);
    }
    this._ended.resolve();
    onToken();
  }

  stop() {
    this._controller.abort();
  }

  /** @param {Record<string, any>} event @param {Settings} settings */
  _add({ id, token, text, logprob, next_tokens, ...outputs }, settings) {
    const place = this.tokens.length;
    this._rowsOf(settings)[place] = Float32Array.from(/** @type {number[]} */ (outputs[settings.kind].flat(Infinity)));
    this.tokens.push({
      id,
      token,
      text,
      probability: Math.exp(logprob),
      alternatives: next_tokens ?? [],
      isChosen: false,
    });
    this.fresh++;
  }

  /** @param {Settings} settings */
  _rowsOf({ kind, combine, layer, head }) {
    const key = `${kind} ${combine} ${layer}.${head}`;
    let rows = this._rows.get(key);
    if (!rows) this._rows.set(key, (rows = []));
    return rows;
  }

  /** The attention of the first tokens: a query for each; the keys are the source, or all tokens before the last.
   *  @param {string} kind @param {number} count */
  attention(kind, count) {
    const { model, start, tokens } = this;
    const generated = labelsOf(tokens.slice(0, count), start.words.at(-1));
    const isCross = kind === "cross_weights";
    const keys = isCross ? (start.sourceWords ?? []) : [...start.words, ...generated.slice(0, -1)];
    const output = /** @type {import("heed/server/api.js").TensorDescription} */ (
      model.outputs.find(({ name }) => name === kind)
    );
    const [layers, heads] = [Number(output.shape[0]), Number(output.shape[2])];
    const last = output.shape.at(-1); // of a spectrogram, whose positions have no words
    const n = isCross && keys.length === 0 ? Number(last) || Object.values(start.source)[0].shape[1] : keys.length;
    const columns =
      [keys, start.patches].find(({ length }) => length === n) ??
      plainLabels(Array.from({ length: n }, (_, i) => String(i)));
    /** @type {Map<Float32Array[], Matrix>} */
    const made = new Map();
    const peek = (/** @type {Settings} */ settings) => {
      const rows = this._rowsOf({ ...settings, kind });
      let matrix = made.get(rows);
      if (matrix) return matrix;
      for (let i = 0; i < count; i++) if (!rows[i]) return null;
      const values = new Float32Array(count * n).fill(-Infinity);
      for (let i = 0; i < count; i++) values.set(rows[i], i * n);
      made.set(rows, (matrix = toMatrix(values, count, n, 1)));
      return matrix;
    };
    const load = async (/** @type {Settings} */ settings) => {
      const known = peek(settings);
      if (known) return known;
      await this._ended.promise;
      const { data } = (await this._run(kind, selectionOf(settings), count))[kind];
      const rows = this._rowsOf({ ...settings, kind });
      for (let i = 0; i < count; i++)
        rows[i] ??= /** @type {Float32Array} */ (data.slice(i * n, i * n + (isCross ? n : start.ids.length + i)));
      return /** @type {Matrix} */ (peek(settings));
    };
    /** @type {Map<number, Promise<import("heed/data/attention.js").Whole>>} */
    const ofQueries = new Map();
    const row = async (/** @type {number} */ query) => {
      await this._ended.promise;
      const own = (await this._run(kind, {}, query + 1, true))[kind];
      const width = Number(own.shape.at(-1)); // up to the query
      const numbers = new Float32Array(layers * heads * n);
      for (let i = 0; i < layers * heads; i++)
        numbers.set(/** @type {Float32Array} */ (own.data).subarray(i * width, (i + 1) * width), i * n);
      return { numbers, unit: 1 };
    };
    const one = (/** @type {number} */ layer, /** @type {number} */ head) =>
      /** @type {Settings} */ ({ layer, head, combine: "none" });
    return new Attention({
      layers,
      heads,
      m: count,
      n,
      rows: generated,
      columns,
      axis: "layer",
      arrival: null,
      small: () => {
        throw new Error("there are no small pictures of what is generated");
      },
      statistics: null,
      received: null,
      peek,
      load: (layer, head) => load(one(layer, head)),
      combine: load,
      row: (query) => {
        const known = ofQueries.get(query) ?? row(query);
        ofQueries.set(query, known);
        return known;
      },
      all: async () => {
        await this._ended.promise;
        const size = layers * heads * count * n;
        const answer = await this._run(kind, size > EXACT ? { weights_dtype: "uint8" } : {}, count);
        const numbers = /** @type {Float32Array | Uint8Array} */ (answer[kind].data);
        if (!isCross && numbers instanceof Float32Array)
          for (let i = 0; i < numbers.length; i++)
            if (i % n >= start.ids.length + (Math.floor(i / n) % count)) numbers[i] = -Infinity; // later tokens
        return { numbers, unit: unitOf(answer) };
      },
    });
  }

  /** The weights of the first tokens, or of the last of them alone, in one run of the model.
   *  @param {string} kind @param {object} options @param {number} count @param {boolean} [isLastAlone]
   *  @returns {Promise<Record<string, Tensor>>}  without sizes before those of a matrix, if the text is generated again */
  async _run(kind, options, count, isLastAlone = false) {
    const { ids, source } = this.start;
    if (this._isUnsendable(this.tokens.slice(0, count - 1))) {
      const rows = (await this._generateAgain(kind, options)).slice(isLastAlone ? count - 1 : 0, count);
      const n = ids.length + count - 1;
      return { [kind]: { ...tensor("float32", [rows.length, n], []), data: fromRows(rows, n) } };
    }
    const all = [...ids, ...this.tokens.slice(0, count - 1).map(({ id }) => id)];
    const name = this.start.sourceWords ? "decoder_input_ids" : "input_ids";
    const inputs = { ...source, [name]: tensor("int64", [1, all.length], all) };
    return infer(this.model.block, inputs, [kind], {
      ...options,
      queries: isLastAlone ? String(all.length - 1) : `${ids.length - 1}:${all.length}`,
    });
  }

  /** The weights of each token, in all heads or in those of the options: the same text is generated again.
   *  @param {string} kind @param {{weights_dtype?: string}} options */
  _generateAgain(kind, { weights_dtype: _, ...options }) {
    const key = JSON.stringify([kind, options]);
    const known = this._again.get(key) ?? this._requestAgain(kind, options);
    this._again.set(key, known);
    return known;
  }

  /** @param {string} kind @param {object} options @returns {Promise<Float32Array[]>} */
  async _requestAgain(kind, options) {
    const { start, model, fresh } = this;
    const text = textBody(start, /** @type {Settings} */ (this._settings));
    const body = { ...text, max_new_tokens: fresh, outputs: [kind], ...options };
    const { generated } = await post(`v1/generate/${encodeURIComponent(model.block)}`, body);
    const rows = generated.map((/** @type {any} */ token) => Float32Array.from(token[kind].flat(Infinity)));
    const chosen = this.tokens.length - fresh;
    if (!chosen) return rows;
    const { data } = (await this._run(kind, options, chosen))[kind];
    return [...toRows(/** @type {Float32Array} */ (data), chosen, start.ids.length + chosen - 1), ...rows];
  }

  /** Requests the probable tokens at those of the first `count` places where they are unknown. @param {number} count */
  async askAll(count) {
    for (let place = 0; place < count; place++) if (!this.tokens[place].alternatives.length) await this.ask(place);
  }

  /** Requests the probable tokens at a place whose token came from a link. @param {number} place */
  async ask(place) {
    const { model, start, tokens } = this;
    const before = tokens.slice(0, place).map(({ id, token }) => /** @type {[number, string]} */ ([id, token ?? ""]));
    const body = { ...promptOf(start, before), max_new_tokens: 1, ignore_eos: true, next_tokens: listed(model) };
    const answer = await post(`v1/generate/${encodeURIComponent(model.block)}`, body);
    const { next_tokens } = answer.generated[0];
    const own = tokens[place];
    const known = next_tokens.find((/** @type {NextToken} */ { id }) => id === own.id);
    tokens[place] = { ...own, alternatives: next_tokens, probability: known?.probability ?? own.probability };
  }
}

/** The chosen tokens of a link, without probabilities or alternatives. @param {Settings["chosen"]} chosen @returns {Token[]} */
export const chosenTokens = (chosen) =>
  chosen.map(([id, token], i) => {
    const isChosen = i === chosen.length - 1;
    return { id, token: token || null, text: "", probability: null, alternatives: [], isChosen };
  });

/** The words of generated tokens. A token without text is special if it has the form of one.
 *  @param {Token[]} tokens @param {Label} [before]  the last of the prompt @returns {Label[]} */
export function labelsOf(tokens, before) {
  const words = wordsOf(tokens.map(({ id, token }) => token ?? `#${id}`));
  // Whether the tokenizer marks no token that begins a word, but puts a blank before each.
  const isPlain = tokens.some(({ token, text }) => /^\s/.test(text) && !beginsWord(token ?? ""));
  let isFirst = true; // of a stream, whose first text begins without a blank
  return tokens.map(({ token, text, isChosen }, i) => {
    const special = !text && isMarked(token ?? "");
    const isPiece = token?.startsWith("##") ?? false;
    const isOwn = special || token === null || beginsWord(token) || (i === 0 && before?.special);
    const begins = isPlain ? isFirst || !text || /^\s/.test(text) : isOwn;
    isFirst = isChosen || (isFirst && !text);
    const word = isPiece ? String(token).slice(2) : words[i];
    return { text: word, special, padding: false, part: 0, ...((isPiece || !begins) && { joined: true }) };
  });
}
