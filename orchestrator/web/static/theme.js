// Before the first paint: the theme that a person chose, else the system's.
try {
  const chosen = localStorage.getItem("penstock.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  /* storage is not accessible: the system's theme applies */
}
