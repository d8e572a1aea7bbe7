// Addresses below the page's own, so that it also works below a path of a proxy.

const BASE = new URL("../", import.meta.url).pathname;

export const to = (path) => BASE + path.replace(/^\//, "");

// The path of an address without the proxy's part.
export const within = (path) => `/${path.startsWith(BASE) ? path.slice(BASE.length) : ""}`;

export const jobAddress = (name, view = "") => to(`jobs/${encodeURIComponent(name)}${view && `/${view}`}`);

export const captureAddress = (job, id) => jobAddress(job, `captures/${encodeURIComponent(id)}`);

export const compareAddress = (a, b = "", more = "") => to(`compare?a=${encodeURIComponent(a)}${b && `&b=${encodeURIComponent(b)}`}${more}`);
