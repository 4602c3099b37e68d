// Preact, and its templates of HTML. They need no build step, and text in them is always text.

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { Component, createRef, render } from "./vendor/preact.js";
export { useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
export const html = htm.bind(h);
