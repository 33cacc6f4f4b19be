// The server's state for operators: version, provider, the state of every model, and the stored memories.
import { html } from "vendor/preact.js";
import * as api from "heed/server/api.js";
import { size } from "heed/server/files.js";
import { modelOf } from "heed/server/run.js";
import { usePromise } from "heed/views/hooks.js";

/** Loads the state once, when the panel is opened. */
async function load() {
  const [server, models, stored] = await Promise.all([api.server(), api.index(), api.memories()]);
  const served = models.map(async (model) => {
    const description = model.state === "READY" ? await modelOf(model.name).catch(() => null) : null;
    return { ...model, description };
  });
  return { server, models: await Promise.all(served), stored };
}

export function ServerPanel() {
  const { value, error, isBusy } = usePromise(load, []);
  if (error) return html`<section class="panel" aria-label="server"><p role="alert">${error.message}</p></section>`;
  if (!value) return html`<section class="panel" aria-label="server" aria-busy=${isBusy}><p>…</p></section>`;
  const { server, models, stored } = value;
  const count = stored.memories.length;
  const bytes = stored.memories.reduce((sum, memory) => sum + memory.bytes, 0);
  return html`<section class="panel" aria-label="server">
    <p>${server.name} ${server.version}, ${server.provider} (${server.provider_reason}).${" "}
      <a href="docs">API</a> <a href="openapi.json">OpenAPI</a> <a href="metrics">metrics</a> <a href="v2">V2</a></p>
    <p>${count} ${count === 1 ? "memory" : "memories"}, ${size(bytes)} of ${size(stored.limit_bytes)}</p>
    <table>
      <thead><tr><th scope="col">model</th><th scope="col">version</th><th scope="col">state</th><th scope="col">weights</th></tr></thead>
      <tbody>${models.map(
        ({ name, version, state, reason, description }) => html`<tr>
        <th scope="row">${name}</th><td>${version}</td><td class=${state === "READY" ? "" : "bad"}>${state}${reason ? `: ${reason}` : ""}</td>
        <td>${api.shortened(description?.weights ?? "")}</td></tr>`,
      )}</tbody>
    </table>
  </section>`;
}
