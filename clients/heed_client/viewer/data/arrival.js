// How much of an answer is here: small pictures can be drawn before its last byte has come.

export class Arrival {
  constructor() {
    /** Pictures that are here: the first ones. */
    this.ready = 0;
    /** Also what comes behind the pictures. */
    this.isWhole = false;
    /** @type {Set<() => void>} */
    this._listeners = new Set();
    /** Resolves when all is here; rejects if it never will be. @type {PromiseWithResolvers<void>} */
    this._whole = Promise.withResolvers();
    this._whole.promise.catch(() => {}); // whoever waits is told
  }

  get whole() {
    return this._whole.promise;
  }

  /** @param {number} ready  pictures that are here now */
  advance(ready) {
    if (ready <= this.ready) return;
    this.ready = ready;
    this._tell();
  }

  _tell() {
    for (const listener of this._listeners) listener();
  }

  /** All is here, or an error has ended it. @param {unknown} [error] */
  end(error) {
    if (error !== undefined) return this._whole.reject(error);
    this.isWhole = true;
    this.ready = Infinity;
    this._whole.resolve();
    this._tell();
  }

  /** @param {() => void} listener  is called when more is here @returns {() => void} that ends it */
  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }
}
