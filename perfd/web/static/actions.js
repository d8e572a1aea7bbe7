// Buttons that do something: copy a text, start a capture, open a trace in Perfetto.

import { post } from "./api.js";
import { el, prose } from "./dom.js";
import { captureAddress } from "./paths.js";

const PERFETTO = "https://ui.perfetto.dev";
const PERFETTO_WAIT_MS = 20_000;

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

// Passes a file to a new Perfetto tab inside the browser, as its documentation describes ("Deep linking").
export function perfettoButton(address, title) {
  const says = el("output", { class: "quiet" }, `Opens ${PERFETTO.slice(8)} in a new tab; the file stays in the browser.`);
  const button = el("button", { type: "button", id: "open-perfetto" }, "Open in Perfetto");
  button.addEventListener("click", async () => {
    // During the click, because browsers block tabs that open later.
    const tab = window.open(PERFETTO);
    if (!tab) {
      says.textContent = "The browser blocked the tab: allow pop-ups for this page, or download the file.";
      return;
    }
    says.textContent = "Loading.";
    const [ready, file] = await Promise.all([answered(tab), fetch(address).then((answer) => (answer.ok ? answer.arrayBuffer() : null)).catch(() => null)]);
    if (ready && file) tab.postMessage({ perfetto: { buffer: file, title } }, PERFETTO, [file]);
    says.textContent = !file ? "The file is no longer available." : ready ? "Opened." : `${PERFETTO.slice(8)} cannot be reached: download the file and open it on a machine that can reach it.`;
  });
  return [button, says];
}

function answered(tab) {
  return new Promise((done) => {
    const end = (found) => {
      clearInterval(asking);
      clearTimeout(patience);
      removeEventListener("message", listen);
      done(found);
    };
    const listen = (event) => event.origin === PERFETTO && event.data === "PONG" && end(true);
    addEventListener("message", listen);
    const asking = setInterval(() => tab.postMessage("PING", PERFETTO), 100);
    const patience = setTimeout(() => end(false), PERFETTO_WAIT_MS);
  });
}

export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const captureCommand = (job, ranks, more = "") => `perfd capture start ${quoted(job)}${ranks ? ` --ranks ${ranks}` : ""} --steps 3${more} --wait`;

// The command to copy, and a button that starts the same capture.
export function captureButton(job, ranks, what) {
  const says = el("output", { class: "quiet" });
  const command = captureCommand(job, ranks);
  const start = el("button", { type: "button", class: "start-capture" }, `Capture ${what}`);
  start.addEventListener("click", () =>
    askToken(`Capture ${what}?`, `Three steps of ${what}${ranks?.endsWith("+peer") ? " and of a healthy peer" : ""} will run under a profiler and take longer.`, "Start", [], async (shown) => {
      const { capture } = await post("captures", { job, steps: 3, by: "the page", ...(ranks && { ranks }) }, shown);
      return ["Started: ", el("a", { href: captureAddress(job, capture.id) }, capture.id)];
    }, says));
  return [start, copyButton("Copy capture command", command), el("code", { class: "command" }, command), says];
}

// Asks for the token and other fields, then acts; the result is shown in `says`.
export function askToken(title, text, verb, fields, act, says) {
  const word = el("input", { type: "password", autocomplete: "off", id: "capture-token", value: token });
  const form = el("form", { method: "dialog" }, el("h2", {}, title), el("p", {}, text), fields,
    el("label", {}, "Token, if the aggregator requires one ", word), el("p", {}, el("button", { value: "start" }, verb), " ", el("button", { value: "no", formnovalidate: true }, "Cancel")));
  const dialog = el("dialog", { "aria-label": title.replace("?", "") }, form);
  dialog.addEventListener("close", async () => {
    dialog.remove();
    if (dialog.returnValue !== "start") return;
    token = word.value;
    says.textContent = "Starting.";
    try {
      says.replaceChildren(...(await act(token)));
    } catch (error) {
      says.replaceChildren(...prose(error.status === 401 ? "The aggregator asks for its token (http_token_file)." : error.message));
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}
