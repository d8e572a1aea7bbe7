// Before anything is drawn: light or dark, as the reader chose here or the system prefers. Kept in this browser only.

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("perfd-theme");
  } catch {
    // Storage is off: as the system prefers.
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : systemDark.matches ? "dark" : "light";
}

applyTheme();
systemDark.addEventListener("change", applyTheme);
// Another tab chose.
window.addEventListener("storage", applyTheme);
