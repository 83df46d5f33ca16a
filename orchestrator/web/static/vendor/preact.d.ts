export type { ComponentChildren, VNode } from "preact";
export { Fragment, h, render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export declare const html: (strings: TemplateStringsArray, ...values: any[]) => any;
