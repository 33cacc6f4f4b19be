// Files that are chosen, or dropped anywhere on the page.
import { html, useEffect, useState } from "vendor/preact.js";
import { remember, remembered } from "heed/data/storage.js";
import { FORMATS, TEST } from "heed/server/picture.js";

const lost = remembered("sessionStorage", "picture"); // the model that had a picture file before the page was loaded

/** Tells the next load of the page which model has a picture file. @param {string} model @param {import("heed/server/run.js").Request | null} request */
export const rememberPicture = (model, request) =>
  remember("sessionStorage", "picture", request?.picture && request.picture !== TEST ? model : "");

/** What is said beside the test picture. @param {{block: string}} model @param {boolean} isSecond */
export const aboutTest = (model, isSecond) =>
  lost === model.block && !isSecond ? "A reload does not keep the picture file; this is the test picture." : TEST;

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
