// Find the tokens that two texts share.

const MOST_CELLS = 4e6; // of the table of a comparison; beyond it only the common beginning and end are found

/**
 * For each word of one list, the place of the same word in the other: the longest common subsequence. -1 = none.
 * @param {string[]} one @param {string[]} other @returns {number[]}
 */
export function same(one, other) {
  const places = new Array(one.length).fill(-1);
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) places[start] = start++;
  let [end, otherEnd] = [one.length, other.length];
  while (end > start && otherEnd > start && one[end - 1] === other[otherEnd - 1]) places[--end] = --otherEnd;
  const [m, n] = [end - start, otherEnd - start];
  if (m * n === 0 || m * n > MOST_CELLS) return places;
  const width = n + 1;
  const lengths = new Uint16Array((m + 1) * width); // of the subsequences from i and j on
  for (let i = m - 1; i >= 0; i--)
    for (let j = n - 1; j >= 0; j--)
      lengths[i * width + j] =
        one[start + i] === other[start + j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  for (let i = 0, j = 0; i < m && j < n;) {
    if (one[start + i] === other[start + j]) places[start + i++] = start + j++;
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return places;
}

/**
 * For each word of one list, the place of its counterpart in the other: the same word, or the word that replaces it if
 * the replaced and the new words are equally many. -1 = none.
 * @param {string[]} one @param {string[]} other @returns {number[]}
 */
export function counterparts(one, other) {
  const places = same(one, other);
  for (let start = 0; start < places.length; start++) {
    if (places[start] >= 0) continue;
    let end = start;
    while (end < places.length && places[end] < 0) end++;
    const from = start === 0 ? 0 : places[start - 1] + 1;
    const to = end === places.length ? other.length : places[end];
    if (to - from === end - start) for (let i = start; i < end; i++) places[i] = from + i - start;
    start = end;
  }
  return places;
}

/** The words of tokens. @param {import("heed/data/attention.js").Label[]} labels */
export const textsOf = (labels) => labels.map(({ text }) => text);
