// Sets light or dark before anything is drawn: the choice stored in this browser, or the system's preference.

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("perfd-theme");
  } catch {
    // Storage is disabled: use the system's preference.
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : systemDark.matches ? "dark" : "light";
}

applyTheme();
systemDark.addEventListener("change", applyTheme);
// Chosen in another tab.
window.addEventListener("storage", applyTheme);
