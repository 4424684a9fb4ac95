// The colours that somebody has chosen here before, set before anything is drawn; else they are the system's.
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is forbidden here */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
