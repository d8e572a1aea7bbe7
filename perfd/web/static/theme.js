// What does not depend on the other scripts. It sets light or dark before anything is drawn: the choice stored in this browser, or the system's preference.

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

// A script that failed to load leaves an empty page; a proxy or a tunnel may have broken.
const LOADED_WITHIN_MS = 10_000;

setTimeout(() => {
  if (document.getElementById("where").hasChildNodes()) return;
  const says = document.createElement("p");
  says.className = "notice bad";
  says.setAttribute("role", "alert");
  says.textContent = "Parts of this page were not loaded. Reload it; if that does not help, the aggregator or what is between does not answer.";
  document.getElementById("notices").append(says);
}, LOADED_WITHIN_MS);
