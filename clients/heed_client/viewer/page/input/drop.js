// Files that are dropped anywhere on the page.
import { html, useEffect, useState } from "vendor/preact.js";
import { FORMATS } from "heed/server/picture.js";

/** A note over the page while files are dragged. @param {{label: string, onFiles: (files: File[]) => void}} props */
export function DropTarget({ label, onFiles }) {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
    const over = (/** @type {DragEvent} */ event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // else the browser opens the file in place of the page
      setOver(true);
    };
    const leave = (/** @type {DragEvent} */ event) => {
      if (event.relatedTarget === null) setOver(false);
    };
    const drop = (/** @type {DragEvent} */ event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      onFiles([...(event.dataTransfer?.files ?? [])]);
    };
    addEventListener("dragenter", over);
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragenter", over);
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
    };
  }, [onFiles]);
  return isOver && html`<div class="drop"><p>${label}</p></div>`;
}

/** A button that chooses a picture. @param {{onFiles: (files: File[]) => void}} props */
export const PictureFile = ({ onFiles }) =>
  html`<label>picture <input type="file" accept=${FORMATS} onChange=${(/** @type {any} */ event) => {
    if (event.currentTarget.files.length) onFiles([...event.currentTarget.files]);
    event.currentTarget.value = "";
  }} /></label>`;
