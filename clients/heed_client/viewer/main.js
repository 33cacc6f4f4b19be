// Starts the page with the data in the document, or without data with the server that the document came from.
import { html, render } from "vendor/preact.js";
import { ServerApp } from "heed/page/server_app.js";
import { restoreTheme } from "heed/page/header.js";
import { SavedApp } from "heed/page/saved_app.js";

const saved = document.getElementById("data");
if (!saved) restoreTheme();
if (!document.fonts.check("1em Inter"))
  document.fonts.load("1em Inter").then(() => dispatchEvent(new Event("heed-theme"))); // draws again what was drawn without it
for (const before of document.querySelectorAll("noscript, #starting")) before.remove();
render(
  saved ? html`<${SavedApp} data=${JSON.parse(saved.textContent ?? "")} />` : html`<${ServerApp} />`,
  document.body,
);
