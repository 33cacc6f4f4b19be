// The browser's storage, which is empty if a frame or the reader forbids it.

/** @param {"localStorage" | "sessionStorage"} where @param {string} key */
export function remembered(where, key) {
  try {
    return globalThis[where].getItem(key);
  } catch {
    return null;
  }
}

/** @param {"localStorage" | "sessionStorage"} where @param {string} key @param {string} value */
export function remember(where, key, value) {
  try {
    globalThis[where].setItem(key, value);
  } catch {
    // not stored
  }
}
