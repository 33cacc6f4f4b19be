// Tokens as readable text: without the marks of their tokenizer, and with characters in place of their bytes.

/** The byte of each character of the alphabet of byte-level BPE, as GPT-2 has it. @type {Map<string, number>} */
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  BYTES.set(String.fromCodePoint(isPrintable ? byte : next++), byte);
}
const isByteLevel = (/** @type {string[]} */ tokens) =>
  tokens.some((token) => /[\u0100-\u0143]/u.test(token)) &&
  tokens.every((token) => [...token].every((character) => BYTES.has(character)));

/** The words of tokens. If a character consists of several tokens, each gets the character and its part. @param {string[]} tokens */
export function wordsOf(tokens) {
  return isByteLevel(tokens) ? decoded(tokens) : tokens.map(plain);
}

/** A token as it is listed. @param {string | null} token  null = it has no text @param {number} id */
export const tokenName = (token, id) => (token === null ? `#${id}` : wordsOf([token])[0]);

/** The token that is held at first: "it", else the first that is not special. @param {import("heed/data/attention.js").Label[]} labels */
export function openingToken(labels) {
  const it = labels.findIndex(({ text }) => text === "it");
  return it >= 0
    ? it
    : Math.max(
        0,
        labels.findIndex(({ special, padding }) => !special && !padding),
      );
}

/** Whether a token has the form of a special one. @param {string} token */
export const isMarked = (token) => /^(<.*>|\[.*\])$/.test(token);

/** Whether a token begins a word, as its tokenizer marks it. @param {string} token */
export const beginsWord = (token) => /^[\u0120\u2581\u010A\s]/u.test(token);

/** @param {string} token  with \u0120 or \u2581 for a blank before it */
const plain = (token) => visible(token.replace(/^[\u0120\u2581](?=.)/u, "").replace(/[\u010A\n]/gu, "⏎") || token);

/** A text with the numbers of characters that fonts do not have, and of one that is only a mark of formatting.
 *  @param {string} text */
const visible = (text) =>
  text.replace(
    /[\p{Cc}\p{Cn}\p{Co}\p{Cs}]|^\p{Cf}$/gu,
    (character) => `U+${Number(character.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}`,
  );

/** @param {string[]} tokens */
function decoded(tokens) {
  const bytes = tokens.map((token) => Array.from(token, (character) => BYTES.get(character) ?? 0));
  /** @type {string[]} */
  const words = [];
  for (let start = 0; start < tokens.length;) {
    let [end, text] = [start, /** @type {string | null} */ (null)];
    while (text === null && end < tokens.length && end - start < MOST_TOKENS)
      text = utf8(bytes.slice(start, ++end).flat());
    if (text === null) words.push(plain(tokens[start++]));
    else {
      const word = visible(text.replace(/^ (?=.)/u, "").replaceAll("\n", "⏎"));
      for (let at = start; at < end; at++)
        words.push(end - start > 1 ? `${word} ${at - start + 1}/${end - start}` : word);
      start = end;
    }
  }
  return words;
}

const MOST_TOKENS = 8; // of one character, with the rest of its tokens

/** Bytes as text; null if they end or begin within a character. @param {number[]} bytes */
function utf8(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}
