// Addresses of this dashboard. They keep the chosen run.

/** @typedef {string | number | null | undefined} Value value of a parameter; null, undefined and empty ones are left out */

/** The run in the address; empty: the dashboard's own. */
export const chosenRun = () => new URLSearchParams(location.search).get("run") ?? "";

/**
 * A path of this dashboard with its parameters and the chosen run.
 * @param {string} path
 * @param {Record<string, Value>} [params]
 */
export function href(path, params = {}) {
  const [bare, given = ""] = path.split("?");
  const query = new URLSearchParams(given);
  for (const [name, value] of Object.entries(params))
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  if (!query.has("run") && chosenRun()) query.set("run", chosenRun());
  const text = query.toString();
  return text ? `${bare}?${text}` : bare;
}
