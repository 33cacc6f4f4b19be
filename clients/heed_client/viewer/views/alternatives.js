// The tokens that were probable in place of a generated one.
import { html } from "vendor/preact.js";
import { percent } from "heed/data/display.js";
import { tokenName } from "heed/data/tokens.js";
import { below } from "heed/views/chances.js";
import { arrowKeys, hint } from "heed/views/controls.js";
import { usePromise } from "heed/views/hooks.js";

/**
 * The most probable tokens at the place of one; a click on another continues from there.
 * @param {{text: import("heed/page/generation.js").Text, place: number | null, actions: import("heed/page/generation.js").Actions | null, isWarm: boolean}} props  `isWarm`: the
 *   most probable one is not always chosen
 */
export function Alternatives({ text: { tokens, words }, place, actions, isWarm }) {
  const word = place === null ? undefined : words[place]?.text;
  const title = html`<h2>Most likely tokens${word !== undefined && ` in place of “${word}”`}</h2>`;
  const fixed = place === null ? null : (actions?.fixed(place) ?? null);
  const choose = fixed ? undefined : actions?.choose;
  const isUnknown = place !== null && tokens[place]?.alternatives.length === 0;
  const asked = usePromise(
    async () => isUnknown && actions?.ask(place),
    [isUnknown, isUnknown && tokens[place].id, place],
  );
  if (place === null || !tokens[place])
    return html`<section class="alternatives" aria-label="next tokens">${title}<p class="note">Point at a generated word to see which tokens were probable in its place.</p></section>`;
  const { id, token, probability, alternatives } = tokens[place];
  if (isUnknown) {
    const why =
      asked.error?.message ?? (actions ? "…" : `Which tokens were probable in place of “${word}” is not known.`);
    return html`<section class="alternatives" aria-label="next tokens">${title}<p class="note">${why}</p></section>`;
  }
  const isListed = alternatives.some((one) => one.id === id);
  const all = isListed ? alternatives : [...alternatives, { id, token, probability: probability ?? 0 }];
  const top = Math.max(...all.map((one) => one.probability), Number.MIN_VALUE);
  return html`<section class="alternatives" aria-label="next tokens">${title}
    <ol onKeyDown=${arrowKeys}>${all.map((one) => {
      const isOwn = one.id === id;
      const reason = isOwn ? "" : actions?.fixed(Number(place), one);
      const name = html`<span class="name">${tokenName(one.token, one.id)}</span><span class="chance" style=${{ width: `${(100 * one.probability) / top}%` }}></span>
        <b>${isOwn && !isListed && probability === null ? below(alternatives.at(-1)?.probability ?? 0) : percent(one.probability)}</b>`;
      const isFirst = one === all[0];
      return html`<li key=${one.id}>${
        choose
          ? html`<button tabindex=${isFirst ? 0 : -1} aria-current=${isOwn} aria-disabled=${isOwn || Boolean(reason)} title=${isOwn ? "" : (reason ?? "continue from this token instead")}
            onClick=${() => !isOwn && !reason && choose(place, one)}>${name}</button>`
          : html`<span class="row" aria-current=${isOwn}>${name}</span>`
      }</li>`;
    })}</ol>
    <p class="note">${fixed ?? (choose && hint("Click another token to continue from it.", "Tap another token to continue from it."))}${isWarm && " Probabilities before temperature."}</p></section>`;
}
