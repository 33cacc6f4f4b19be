// A formula in LaTeX, by KaTeX.
import { html, useEffect, useRef } from "vendor/preact.js";

/** @param {{formula: string, isInline?: boolean}} props */
export function Formula({ formula, isInline = false }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const href = new URL("../vendor/katex.css", import.meta.url).href;
    if (!document.querySelector(`link[href="${href}"]`))
      document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
    import("vendor/katex.js").then(({ default: katex }) => {
      if (element.current) katex.render(formula, element.current, { displayMode: !isInline, throwOnError: false });
    });
  }, [formula]);
  return html`<div class=${isInline ? "formula-line" : "formula"} ref=${element} role="math" aria-label=${formula}></div>`;
}
