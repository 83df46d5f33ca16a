"""The terminal app: queue on top, rollouts below, next to them servers, processes and the mix; refreshed once a second, quit with q."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Footer, Static

from orchestrator.contracts.errors import PenstockError
from orchestrator.runtime.figures import sparkline
from orchestrator.top import text
from orchestrator.top.picture import LEGEND, picture
from orchestrator.top.snapshot import Snapshot

PERIOD_S = 1.0
STYLES = {"r": "green", "R": "yellow", "w": "dim", "t": "blue", ".": "dim", "x": "dim red", "D": "bold red"}


class Top(App[None]):
    """`read` returns a snapshot; `clean` makes untrusted text harmless. A failed read is reported, and the last snapshot stays visible."""

    TITLE = "penstock top"
    CSS = """
    #why { padding: 0 1; }
    #why.bad { background: $error; color: $text; }
    #numbers, #cells, #below, #legend, #trainer { padding: 0 1; }
    #legend { color: $text-muted; }
    #lower { height: 1fr; }
    #rollouts { width: 2fr; }
    #side { width: 1fr; min-width: 40; }
    DataTable { height: 1fr; border-top: solid $secondary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("r", "reload", "Look now"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, read: Callable[[], Awaitable[Snapshot]], clean: Callable[[str], str], period_s: float = PERIOD_S
    ) -> None:
        super().__init__()
        self._read = read
        self._clean = clean
        self._period_s = period_s
        self._paused = False
        self._read_in_flight = False
        self.seen: Snapshot | None = None

    def compose(self) -> ComposeResult:
        """The widgets, top to bottom."""
        for name in ("why", "numbers", "cells", "below", "legend", "trainer"):
            yield Static("", id=name, markup=False)
        with Horizontal(id="lower"):
            yield DataTable[Text](id="rollouts", cursor_type="row", zebra_stripes=True)
            with Vertical(id="side"):
                yield DataTable[Text](id="servers", cursor_type="none")
                yield DataTable[Text](id="processes", cursor_type="none")
                yield DataTable[Text](id="mix", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        """Refresh at once, and then every second."""
        for name, columns in (
            ("rollouts", text.ROLLOUTS),
            ("servers", text.SERVERS),
            ("processes", text.PROCESSES),
            ("mix", text.MIX),
        ):
            self._table(name).add_columns(*columns)
        self._say("why", "looking …")
        self.reload()
        self.set_interval(self._period_s, self._tick)

    def _tick(self) -> None:
        if not self._paused:
            self.reload()

    def action_reload(self) -> None:
        """Refresh now."""
        self.reload()

    def action_pause(self) -> None:
        """Pause or resume refreshing."""
        self._paused = not self._paused
        self.sub_title = "paused" if self._paused else ""
        self._say("legend", "PAUSED: p goes on" if self._paused else LEGEND)

    @work
    async def reload(self) -> None:
        """Read and show; does nothing while another read is in flight. Errors appear in the first line."""
        if self._read_in_flight:
            return
        self._read_in_flight = True
        try:
            found = await self._read()
        except PenstockError as error:
            age_note = " The data below is stale." if self.seen is not None else ""
            self._say("why", f"{error}.{age_note}", bad=True)
            return
        finally:
            self._read_in_flight = False
        self.seen = found
        self._show(found)

    def _show(self, found: Snapshot) -> None:
        status = found.queue.status
        no_signal = f" No signal: {status.no_signal}." if status.no_signal else ""
        unjudged = f" {status.without_verdict}." if status.without_verdict else ""
        sentence = f"run {found.run} is {status.state}. {status.why}{no_signal}{unjudged}"
        self._say("why", sentence, bad=status.bad or bool(no_signal))
        self._say("numbers", text.head_line(found))
        drawing = picture(found.queue, max(20, self.size.width - 4))
        cells = Text()
        for letter in drawing.cells:
            cells.append(letter, STYLES.get(letter, ""))
        self.query_one("#cells", Static).update(cells)
        self._say("below", drawing.below)
        if not self._paused:
            self._say("legend", LEGEND)
        self._say("trainer", f"{text.trainer(found)}  {sparkline(found.work.trainer.performances[::-1])}")
        for name, rows in (
            ("rollouts", text.rollouts(found)),
            ("servers", text.servers(found)),
            ("processes", text.processes(found)),
            ("mix", text.mix(found)),
        ):
            self._fill(name, rows)

    def _table(self, name: str) -> "DataTable[Text]":
        found: DataTable[Text] = self.query_one(f"#{name}", DataTable)
        return found

    def _fill(self, name: str, rows: Sequence[Sequence[str]]) -> None:
        """Replace the rows; cursor and scroll position stay."""
        table = self._table(name)
        at, scroll = table.cursor_row, table.scroll_y
        table.clear()
        for row in rows:
            table.add_row(*(Text(self._clean(each).replace("\n", " ")) for each in row))
        if rows:
            table.move_cursor(row=min(at, len(rows) - 1), animate=False, scroll=False)
        table.scroll_to(y=scroll, animate=False)

    def _say(self, name: str, text: str, *, bad: bool = False) -> None:
        widget = self.query_one(f"#{name}", Static)
        widget.update(Text(self._clean(text)))
        widget.set_class(bad, "bad")
