// Where the parts of the chat view stand.

import { element } from "../dom.js";
import { COLOURS } from "../tokens.js";

/** The elements that join the parts, by their names in the view. `actions` has a function for each button. */
export function layout({ history, thread, composer, settings }, actions) {
  const button = (name, onclick, more) => element("button", { type: "button", onclick, ...more }, name);
  const historyButton = button("History", actions.history, { "aria-controls": history.root.id });
  const settingsButton = button("Settings", actions.settings, { "aria-controls": settings.root.id });
  const scoresButton = button("Probabilities", actions.scores, {
    "aria-pressed": "false",
    title: "Colour the tokens of answers by their probability",
  });
  const alert = element("span", { role: "alert" });
  const dismiss = button("Dismiss", actions.dismiss, { class: "quiet" });
  const alertBox = element("div", { class: "alert", hidden: true }, alert, dismiss);
  const status = element("p", { class: "unseen", role: "status" });
  const space = element("span", { class: "space" });
  const bar = element(
    "div",
    { class: "bar" },
    historyButton,
    button("New chat", actions.fresh),
    space,
    scoresButton,
    settingsButton,
  );
  const colours = element("p", { class: "hint colours", hidden: true }, COLOURS);
  const middle = element("div", { class: "middle" }, bar, colours, alertBox, thread.root, composer.root, status);
  const chat = element("div", { class: "chat" }, history.root, middle, settings.root);
  return { chat, historyButton, settingsButton, scoresButton, colours, alert, alertBox, status };
}
