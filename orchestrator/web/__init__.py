"""The dashboard: a separate process that reads the live data pool and serves browsers on loopback.

| file | job |
|---|---|
| server | the process: token, listener, stop |
| site | the state of the process: run, configuration, data pool, token, metrics |
| app | assembles routes, pages and static files; `server` passes in the routes |
| guard | access control and response headers; errors as one sentence |
| requests | input of an API module: a query with its run, connection and checked parameters; a command with its body |
| database | the data pool, which may be unavailable at any time |
| change_feed | one poll of the data pool for all listeners of /api/events, only while there are any |
| api/ | one module per page: `ROUTES`, listed in `api/__init__` |
| static/ | plain ES modules and style sheets; no build step, no external files; vendor/ Preact, htm and uPlot (ops/decisions/0028) |

A page needs two things. **An API module** `api/NAME.py` with `ROUTES = [get("/api/NAME/{group_id}", answer)]`, where
`async def answer(query: Query) -> object` returns a dataclass of `orchestrator.queries` (msgspec makes the JSON); name the module in
`api/__init__`. Refusals are `Refused(status, sentence)`. Steering is `post(path, execute)` with
`async def execute(command: CommandRequest) -> object`, through functions of `orchestrator.pool` that write their row of `actions` in the same
transaction. An answer other than JSON (a download) is `get_raw(path, serve)`.
**A page module** `static/pages/NAME.js` that exports a component `Page({ page })`, named in `static/pages.js` with its path, title and key.
`page` has `params`, `query`, `signal`, `title(text)`, `go(path)` and `filter({...})`; `useLive(page, path)` of `hooks.js` returns the answer
to a path, and refreshes it after a change. Preact makes elements from `html` templates, never from HTML; text of models, tasks and tools goes
through `visible()` of `format.js`; styles are classes of `style.css` and attributes of SVG; `style` takes custom properties as an object,
which Preact sets where the CSP allows it. `ops/web/check` lints and checks types, `--fix` formats first; the tier `browser` runs it.
"""
