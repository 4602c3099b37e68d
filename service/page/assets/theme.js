// The colours that the person has chosen, for every page of this server.

const THEMES = ["as the system", "light", "dark"];

/** Let a button go through the colours. */
export function setUpTheme(button) {
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-label", `Colours: ${theme}`);
    button.title = `Colours: ${theme}`;
  };
  const chosen = localStorage.getItem("noria-theme");
  show(THEMES.includes(chosen) ? chosen : THEMES[0]);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("noria-theme", next);
    show(next);
  });
}
