// The effects of heads that are switched off, as numbers: on each head, on each token, and on the next tokens.
import { changesOf, distance, measuredEffects, nextTokens, outputOf, runWhole } from "heed/server/ablation.js";

/**
 * @param {import("heed/views/hooks.js").Run} run
 * @returns {Promise<{heads: {layer: number, head: number, off: boolean, largest_change: number | null, effect: number | null}[],
 *   tokens: {token: string, cosine: number, relative_change: number}[] | null,
 *   next_tokens: {before: import("heed/server/ablation.js").NextToken[], after: import("heed/server/ablation.js").NextToken[]} | null}>}
 *   largest_change: of a weight, without those of special tokens and punctuation; relative_change: the length of the change of a token's output, as a share of its length;
 *   effect: the same of the whole output, without this head alone, null = not measured
 */
export async function ablationOf(run) {
  const { model, input, attention, settings } = run;
  const [before, output, tokens] = await Promise.all([
    runWhole(model, settings, input),
    outputOf(model, settings, input),
    nextTokens(model, settings, input),
  ]);
  const off = new Set(settings.ablated.map(String));
  const changes = changesOf(attention, before.attention, settings.ablated);
  const effects = measuredEffects(run);
  const heads = Array.from({ length: attention.layers * attention.heads }, (_, at) => {
    const [layer, head] = [Math.floor(at / attention.heads), at % attention.heads];
    const change = changes.find((one) => one.layer === layer && one.head === head);
    const effect = effects?.[layer][head] ?? null;
    return { layer, head, off: off.has(String([layer, head])), largest_change: change?.largest ?? null, effect };
  });
  const labels = attention.rows;
  const rows = before.output?.rows;
  const isOfTokens = rows && output && rows.length === output.rows.length;
  return {
    heads,
    tokens: isOfTokens
      ? rows.map((row, i) => {
          const { cosine, share } = distance(row, output.rows[i]);
          return { token: rows.length === labels.length ? labels[i].text : String(i), cosine, relative_change: share };
        })
      : null,
    next_tokens: before.tokens && tokens ? { before: before.tokens, after: tokens } : null,
  };
}

/** CSV (RFC 4180) with a line for each head; an empty field is unknown. @param {Awaited<ReturnType<typeof ablationOf>>} ablation */
export function ablationCsv({ heads }) {
  const lines = heads.map((head) => Object.values(head).map((value) => value ?? ""));
  return [Object.keys(heads[0]), ...lines, []].map((line) => line.join(",")).join("\r\n");
}
