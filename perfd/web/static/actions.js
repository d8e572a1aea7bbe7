// Buttons that do something: copy a text, start a capture.

import { post } from "./api.js";
import { el } from "./dom.js";
import { jobAddress } from "./paths.js";

// The token stays in this tab's memory.
let token = "";

export function copyButton(text, content) {
  const button = el("button", { type: "button", class: "copy" }, text);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(content)) ? "Copied" : "Select and copy it by hand";
    setTimeout(() => button.replaceChildren(text), 2000);
  });
  return button;
}

// Without TLS a browser has no clipboard for pages of other machines.
async function copied(content) {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    const area = el("textarea", { readonly: true, class: "skip" });
    area.value = content;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const captureCommand = (job, ranks, more = "") => `perfd capture start ${quoted(job)}${ranks ? ` --ranks ${ranks}` : ""} --steps 3${more} --wait`;

// The command to copy, and a button that starts the same capture.
export function captureButton(job, ranks, what) {
  const says = el("output", { class: "quiet" });
  const command = captureCommand(job, ranks);
  const start = el("button", { type: "button", class: "start-capture" }, `Capture ${what}`);
  start.addEventListener("click", () => ask(job, ranks, what, says));
  return [start, copyButton("Copy capture command", command), el("code", { class: "command" }, command), says];
}

function ask(job, ranks, what, says) {
  const word = el("input", { type: "password", autocomplete: "off", id: "capture-token", value: token });
  const form = el("form", { method: "dialog" },
    el("h2", {}, `Capture ${what}?`), el("p", {}, `Three steps of ${what}${ranks?.endsWith("+peer") ? " and of a healthy peer" : ""} run under a profiler and take longer.`),
    el("label", {}, "Token, if the aggregator has one ", word), el("p", {}, el("button", { value: "start" }, "Start"), " ", el("button", { value: "no", formnovalidate: true }, "Cancel")));
  const dialog = el("dialog", { "aria-label": `Capture ${what}` }, form);
  dialog.addEventListener("close", async () => {
    dialog.remove();
    if (dialog.returnValue !== "start") return;
    token = word.value;
    says.textContent = "Starting.";
    try {
      const { capture } = await post("captures", { job, steps: 3, ...(ranks && { ranks }) }, token);
      says.replaceChildren("Started: ", el("a", { href: `${jobAddress(job, "captures")}#capture-${encodeURIComponent(capture.id)}` }, capture.id));
    } catch (error) {
      says.textContent = error.status === 401 ? "The aggregator asks for its token (http_token_file)." : error.message;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}
