// The part of an answer that has arrived: small pictures can be drawn before the last byte.

export class Arrival {
  constructor() {
    /** Number of pictures that have arrived. */
    this.ready = 0;
    /** Whether the rest of the answer has arrived, too. */
    this.isWhole = false;
    /** @type {Set<() => void>} */
    this._listeners = new Set();
    /** Resolves when the whole answer has arrived; rejects on an error. @type {PromiseWithResolvers<void>} */
    this._whole = Promise.withResolvers();
    this._whole.promise.catch(() => {}); // those that await it handle the error
  }

  get whole() {
    return this._whole.promise;
  }

  /** @param {number} ready  number of pictures that have arrived */
  advance(ready) {
    if (ready <= this.ready) return;
    this.ready = ready;
    this._tell();
  }

  _tell() {
    for (const listener of this._listeners) listener();
  }

  /** The whole answer has arrived, or an error has ended it. @param {unknown} [error] */
  end(error) {
    if (error !== undefined) return this._whole.reject(error);
    this.isWhole = true;
    this.ready = Infinity;
    this._whole.resolve();
    this._tell();
  }

  /** @param {() => void} listener  is called when more has arrived @returns {() => void} that removes it */
  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }
}
