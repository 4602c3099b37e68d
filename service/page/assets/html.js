// Preact, and its templates of HTML. They need no build step, and text in them is always text.

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { Component, createRef, render } from "./vendor/preact.js";
export { useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
export const html = htm.bind(h);
/** Whether this is a touch screen: keys are on the screen, and Enter has no Shift beside it. */
export const touches = () => matchMedia("(hover: none)").matches;
/** Whether a key sends what is written. Safari ends a composition before its keydown, with key code 229. */
export const sends = ({ key, shiftKey, isComposing, keyCode }) =>
  key === "Enter" && !shiftKey && !isComposing && keyCode !== 229 && !touches();
