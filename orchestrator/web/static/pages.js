// The pages: path (with :names), title, how to load it; `nav` and `key` put it into the navigation and under `g KEY`; `under` names the
// navigation path that a page outside of the navigation belongs to. A module exports `Page({ page })`.

/** @type {import("./router.js").Place[]} */
export const pages = [
  { path: "/run", title: "Run", nav: true, key: "r", load: () => import("./pages/run.js") },
  { path: "/queue", title: "Queue", nav: true, key: "q", load: () => import("./pages/queue.js") },
  { path: "/groups", title: "Groups", nav: true, key: "g", load: () => import("./pages/groups.js") },
  { path: "/groups/:group", title: "Group", under: "/groups", load: () => import("./pages/group.js") },
  { path: "/rollouts", title: "Rollouts", nav: true, key: "o", load: () => import("./pages/rollouts.js") },
  { path: "/rollouts/:rollout", title: "Rollout", under: "/rollouts", load: () => import("./pages/rollout.js") },
  { path: "/batches", title: "Batches", nav: true, key: "b", load: () => import("./pages/batches.js") },
  { path: "/batches/:batch", title: "Batch", under: "/batches", load: () => import("./pages/batch.js") },
  { path: "/system", title: "System", nav: true, key: "s", load: () => import("./pages/system.js") },
];

export const HOME = "/run";
