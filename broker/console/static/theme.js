// Before the first paint: light or dark as it was chosen here; else as the system has it.
document.documentElement.classList.add("js");
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
