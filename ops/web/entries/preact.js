// What the dashboard uses of Preact, its hooks and htm, as one module.
import htm from "htm";
import { Fragment, h } from "preact";

export { Fragment, h, render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export const html = htm.bind(h);
